#include <gmock/gmock.h>

#include "worker/agent/orted_command.h"

namespace swax {
namespace {

using ::testing::ElementsAre;

TEST(OrtedCommand, TakesTheWordsBehindTheDaemon) {
  const auto words = orted_arguments(
      "PATH=/usr/bin:$PATH ; export PATH ; /usr/bin/orted -mca ess \"env\" -mca orte_node_regex "
      "\"vm,[1:2-3]@0(3)\" -mca orte_hnp_uri \"1.0;tcp://127.0.0.1:4711\"");
  ASSERT_TRUE(words.ok()) << words.status().message();
  EXPECT_THAT(*words,
              ElementsAre("-mca", "ess", "env", "-mca", "orte_node_regex", "vm,[1:2-3]@0(3)",
                          "-mca", "orte_hnp_uri", "1.0;tcp://127.0.0.1:4711"));
}

// What Open MPI 4.1.4 writes for a user whose login shell is /bin/sh.
TEST(OrtedCommand, TakesTheFormForPlainShells) {
  const auto words = orted_arguments(
      "( test ! -r ./.profile || . ./.profile;  orted -mca ess \"env\" -mca plm \"rsh\" )");
  ASSERT_TRUE(words.ok()) << words.status().message();
  EXPECT_THAT(*words, ElementsAre("-mca", "ess", "env", "-mca", "plm", "rsh"));
}

TEST(OrtedCommand, KeepsEmptyAndQuotedWords) {
  const auto words = orted_arguments(R"(orted '' 'a b' c\ d "e\"f")");
  ASSERT_TRUE(words.ok());
  EXPECT_THAT(*words, ElementsAre("", "a b", "c d", "e\"f"));
}

TEST(OrtedCommand, RefusesEverythingElse) {
  for (const char* command :
       {"", "sh -c reboot", "/bin/sh", "notorted -mca a b", "orted; reboot", "orted && reboot",
        "orted $(reboot)", "orted `reboot`", "orted \"$(reboot)\"", "orted > /etc/passwd",
        "orted \"open", "orted | sh", "orted\nreboot", "( orted ) ; ( reboot )",
        "( orted; reboot )", "orted )"}) {
    const auto words = orted_arguments(command);
    ASSERT_FALSE(words.ok()) << command;
    EXPECT_EQ(words.status().code(), Code::kInvalidArgument) << command;
  }
}

}  // namespace
}  // namespace swax
