// Goal: every container and text form gives the same documents, and bad input is refused with its
// place. Method: fixtures of one document set in all forms; text cut into pieces of every size.
#include <gmock/gmock.h>

#include <span>

#include "proto/base/text.h"
#include "tests/worker/data_fixture.h"
#include "worker/data/import.h"
#include "worker/data/import_kjv.h"
#include "worker/data/import_stream.h"
#include "worker/data/import_text.h"

namespace swax {
namespace {

using test::fixture;
using test::KeepingSink;
using test::TempFolder;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::IsEmpty;

using Documents = std::vector<std::string>;

const Documents& sample_documents() {
  static const Documents documents = {"In the beginning was the line.\nIt had a second line.",
                                      "\xC3\x9Cn\xC3\xAF"
                                      "c\xC3\xB6"
                                      "d\xC3\xA9: \xF0\x9F\x98\x80 and \xE2\x82\xAC, tab\there.",
                                      "  leading and trailing spaces  ",
                                      std::string("A document with a NUL byte:\0: inside it.", 40),
                                      "The last document, without a line end."};
  return documents;
}

struct Imported {
  Status status;
  Documents documents;
  int64_t progress = 0;
};

Imported import(const std::string& path, ImportOptions options = {}) {
  Imported imported;
  KeepingSink sink;
  options.progress = [&](int64_t bytes) { imported.progress = bytes; };
  imported.status = import_documents(path, options, sink);
  imported.documents = sink.documents;
  EXPECT_TRUE(!imported.status.ok() || !sink.open()) << "a document was not closed";
  return imported;
}

Imported import_bytes(std::string_view name, std::string_view bytes, ImportOptions options = {}) {
  const TempFolder folder;
  return import(folder.write(name, bytes), options);
}

TEST(Import, EveryFormGivesTheSameDocuments) {
  for (const char* name :
       {"sample.txt", "sample_crlf.txt", "sample.jsonl", "sample.txt.gz", "sample.jsonl.gz",
        "sample_members.txt.gz", "sample.jsonl.zst", "sample_frames.jsonl.zst"}) {
    const Imported imported = import(fixture(name));
    ASSERT_TRUE(imported.status.ok()) << imported.status.to_string();
    EXPECT_THAT(imported.documents, ElementsAreArray(sample_documents())) << name;
    EXPECT_EQ(imported.progress, static_cast<int64_t>(test::contents(fixture(name)).size()));
  }
}

TEST(Import, ContainerIsToldByItsBytesNotItsName) {
  const Imported packed = import_bytes("looks_plain.txt", test::contents(fixture("sample.txt.gz")));
  EXPECT_THAT(packed.documents, ElementsAreArray(sample_documents()));
  const Imported zst = import_bytes("a.jsonl.gz", test::contents(fixture("sample.jsonl.zst")));
  EXPECT_THAT(zst.documents, ElementsAreArray(sample_documents()));
  for (const char* name : {"plain.txt.gz", "plain.txt.zst", "empty.gz"}) {
    const Imported wrong = import_bytes(name, name[0] == 'e' ? "" : "plain text");
    EXPECT_EQ(wrong.status.code(), Code::kDataLoss) << wrong.status.to_string();
    EXPECT_THAT(wrong.status.message(), HasSubstr(name));
  }
}

TEST(Import, EveryTruncationIsDataLoss) {
  for (const char* name : {"sample.txt.gz", "sample.jsonl.zst"}) {
    const std::string whole = test::contents(fixture(name));
    for (size_t bytes = 4; bytes < whole.size(); ++bytes) {
      const Imported cut = import_bytes(name, whole.substr(0, bytes), {.lossy = true});
      ASSERT_EQ(cut.status.code(), Code::kDataLoss) << name << " cut to " << bytes;
      EXPECT_THAT(cut.status.message(), HasSubstr(name));
    }
  }
}

TEST(Import, DamagedAndTrailingBytesAreDataLoss) {
  for (const char* name : {"sample.txt.gz", "sample.jsonl.zst"}) {
    std::string bytes = test::contents(fixture(name));
    EXPECT_EQ(import_bytes(name, bytes + "tail").status.code(), Code::kDataLoss) << name;
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x10);
    EXPECT_EQ(import_bytes(name, bytes).status.code(), Code::kDataLoss) << name;
  }
  // gzip files on tapes end in zero bytes; that is no damage.
  const std::string padded = test::contents(fixture("sample.txt.gz")) + std::string(600, '\0');
  EXPECT_THAT(import_bytes("a.gz", padded).documents, ElementsAreArray(sample_documents()));
}

TEST(Import, CutsBlocksLinesAndFiles) {
  const std::string text = "\n\na\nb\n\n\n c\n\nd";
  EXPECT_THAT(import_bytes("t", text).documents, ElementsAre("a\nb", " c", "d"));
  EXPECT_THAT(import_bytes("t", text, {.documents = "line"}).documents,
              ElementsAre("", "", "a", "b", "", "", " c", "", "d"));
  EXPECT_THAT(import_bytes("t", text, {.documents = "file"}).documents, ElementsAre(text));
  // One final line end belongs to no document, whatever the rule.
  for (const char* rule : {"auto", "line", "file"}) {
    EXPECT_THAT(import_bytes("t", "x", {.documents = rule}).documents, ElementsAre("x")) << rule;
    EXPECT_THAT(import_bytes("t", "x\n", {.documents = rule}).documents, ElementsAre("x")) << rule;
    EXPECT_THAT(import_bytes("t", "x\r\n", {.documents = rule}).documents, ElementsAre("x"));
  }
  EXPECT_THAT(import_bytes("t", "").documents, IsEmpty());
  EXPECT_THAT(import_bytes("t", "\n\n\n").documents, IsEmpty());
  EXPECT_THAT(import_bytes("t", "", {.documents = "file"}).documents, ElementsAre(""));
  EXPECT_THAT(import_bytes("t", "x\n\n", {.documents = "file"}).documents, ElementsAre("x\n"));
}

TEST(Import, OnlyCrLfPairsBecomeLineEnds) {
  EXPECT_THAT(import_bytes("t", "a\rb\r\r\nc\r").documents, ElementsAre("a\rb\r\nc\r"));
  EXPECT_THAT(import_bytes("t", "a\r\n\r\nb").documents, ElementsAre("a", "b"));
  EXPECT_THAT(import_bytes("t", "\xEF\xBB\xBF").documents, IsEmpty());
  // A byte order mark is one only at the beginning.
  EXPECT_THAT(import_bytes("t", "a\xEF\xBB\xBF").documents, ElementsAre("a\xEF\xBB\xBF"));
}

// The reader works in pieces of 256 KiB: put each special sequence over that border.
TEST(Import, SequencesOverAPieceBorder) {
  constexpr size_t kPiece = 256 * 1024;
  for (const std::string_view middle : {"\r\n", "\r\n\r\n", "\n\n", "\xF0\x9F\x98\x80", "\r"}) {
    for (size_t before = kPiece - 5; before <= kPiece + 1; ++before) {
      const std::string head(before, 'x');
      const std::string text = head + std::string(middle) + "y";
      Documents expected = {head + std::string(middle) + "y"};
      if (middle == "\r\n") expected = {head + "\ny"};
      if (middle == "\n\n" || middle == "\r\n\r\n") expected = {head, "y"};
      const Imported imported = import_bytes("t", text);
      ASSERT_EQ(imported.documents, expected) << printable(middle) << " at " << before;
    }
  }
}

TEST(Import, RefusesBadUtf8WithItsOffset) {
  struct Case {
    std::string_view text;
    int64_t offset;
  };
  using std::string_view_literals::operator""sv;
  const std::string far = std::string(256 * 1024 - 1, 'x') + "\xE2\x82";
  for (const Case& c :
       {Case{"ok \x80"sv, 3}, Case{"\xC3"sv, 0}, Case{"ab\xC3("sv, 2}, Case{"\xC0\xAF"sv, 0},
        Case{"\xED\xA0\x80"sv, 0}, Case{"\xF4\x90\x80\x80"sv, 0}, Case{"a\xE2\x82"sv, 1},
        Case{"\xEF\xBB\xBF\xFF"sv, 3}, Case{far, 256 * 1024 - 1}}) {
    const Imported refused = import_bytes("bad.txt", c.text);
    EXPECT_EQ(refused.status.code(), Code::kInvalidArgument);
    EXPECT_THAT(refused.status.message(), HasSubstr("bad.txt: byte " + to_text(c.offset) + " "));
    const Imported kept = import_bytes("bad.txt", c.text, {.lossy = true});
    ASSERT_TRUE(kept.status.ok());
    const bool mark = c.text.starts_with("\xEF\xBB\xBF");
    EXPECT_THAT(kept.documents, ElementsAre(std::string(c.text.substr(mark ? 3 : 0))));
  }
}

TEST(Utf8Checker, FindsTheSameOffsetForEveryPieceSize) {
  const std::string text = sample_documents()[1] + "\xE2\x82\xAC\xF0\x9F\x98" + "(";
  const int64_t bad = static_cast<int64_t>(sample_documents()[1].size()) + 3;
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    Utf8Checker checker;
    bool valid = true;
    for (size_t i = 0; i < text.size() && valid; i += piece) {
      valid = checker.feed(std::string_view(text).substr(i, piece));
    }
    EXPECT_FALSE(valid);
    EXPECT_EQ(checker.bad_offset(), bad) << piece;
  }
}

TEST(Jsonl, DecodesEscapesAndSurrogatePairs) {
  const Imported imported = import_bytes("a.jsonl",
                                         "\xEF\xBB\xBF{\"text\":\"q\\\" b\\\\ s\\/ \\b\\f\\n\\r\\t "
                                         "\\u0041\\u00e9\\u20ac\\ud83d\\ude00\"}\r\n"
                                         "\r\n  \n"
                                         "{\"x\":[1,{\"text\":2}],\"text\":\"a\\u0000b\\r\\n\"}\n"
                                         "{\"text\":\"\"}\n"
                                         "{\"\\u0074ext\":\"key in escapes\"}");
  ASSERT_TRUE(imported.status.ok()) << imported.status.to_string();
  EXPECT_THAT(imported.documents,
              ElementsAre("q\" b\\ s/ \b\f\n\r\t A\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80",
                          std::string("a\0b\r\n", 5), "", "key in escapes"));
  const Imported other =
      import_bytes("a.ndjson", "{\"body\":\"b\",\"text\":1}", {.jsonl_field = "body"});
  EXPECT_THAT(other.documents, ElementsAre("b"));
}

TEST(Jsonl, RefusesWithFileAndLine) {
  const std::string good = "{\"text\":\"good\"}\n\n";
  for (const std::string_view bad :
       {"{\"text\":\"\\ud83d\"}", "{\"text\":\"\\ude00\\ud83d\"}", "{\"text\":\"\\u12g4\"}",
        "{\"text\":\"\\x\"}", "{\"text\":\"raw\ttab\"}", "{\"text\":\"bad \xFF\"}",
        "{\"text\":\"open", "{\"text\":1}", "{\"text\":null}", "{\"txt\":\"\"}", "[\"text\"]",
        "\"text\"", "{\"text\":\"a\"} x", "{\"text\":\"a\"}{\"text\":\"b\"}",
        "{\"text\":\"a\",\"text\":\"b\"}", "{'text':'a'}", "{\"text\":\"a\",}"}) {
    const Imported refused = import_bytes("bad.jsonl", good + std::string(bad) + "\n" + good);
    EXPECT_EQ(refused.status.code(), Code::kInvalidArgument) << bad;
    EXPECT_THAT(refused.status.message(), HasSubstr("bad.jsonl:3: ")) << bad;
    EXPECT_THAT(refused.documents, ElementsAre("good"));
  }
}

TEST(Jsonl, RefusesALineAboveTheLimit) {
  if (test::sanitized()) GTEST_SKIP() << "64 MiB of JSON take half a minute under a sanitizer";
  std::string line =
      "{\"text\":\"" + std::string(static_cast<size_t>(kJsonlLineBytesMax) - 11, 'x');
  const Imported fits = import_bytes("long.jsonl", line + "\"}");
  ASSERT_TRUE(fits.status.ok()) << fits.status.to_string();
  EXPECT_EQ(fits.documents[0].size(), static_cast<size_t>(kJsonlLineBytesMax) - 11);
  const Imported refused = import_bytes("long.jsonl", "{\"text\":\"\"}\n" + line + "x\"}");
  EXPECT_EQ(refused.status.code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.status.message(), HasSubstr("long.jsonl:2: more than 64"));
}

TEST(Import, RefusesWhatItCannotRead) {
  const TempFolder folder;
  EXPECT_EQ(import(folder.file("none.txt")).status.code(), Code::kNotFound);
  EXPECT_EQ(import(folder.path()).status.code(), Code::kInvalidArgument);
  EXPECT_EQ(import("debian:none").status.code(), Code::kInvalidArgument);
  EXPECT_EQ(import_bytes("t", "x", {.documents = "word"}).status.code(), Code::kInvalidArgument);
  EXPECT_EQ(import_bytes("a.jsonl", "", {.documents = "file"}).status.code(),
            Code::kInvalidArgument);
  EXPECT_EQ(import("debian:kjv", {.documents = "line"}).status.code(), Code::kInvalidArgument);
}

TEST(KjvCutter, RefusesWhatIsNotTheWholeText) {
  KeepingSink sink;
  KjvCutter cutter(sink);
  ASSERT_TRUE(cutter.feed("Ge1:1 In the beginn").ok());
  ASSERT_TRUE(cutter.feed("ing\nGe1:2 And\nGe2:1 Thus\n1Sm1:1 Now").ok());
  EXPECT_THAT(sink.documents, ElementsAre("In the beginning\nAnd"));
  EXPECT_THAT(cutter.finish().message(), HasSubstr("inside a verse"));
  ASSERT_TRUE(cutter.feed("\n").ok());
  EXPECT_THAT(cutter.finish().message(), HasSubstr("3 chapters: must be 1189"));
  for (const std::string_view line : {"Ge1 x", "Ge1:1", "1:1 x", "Ge:1 x", "", " Ge1:1 x"}) {
    KjvCutter other(sink);
    EXPECT_EQ(other.feed(std::string(line) + "\n").code(), Code::kDataLoss) << line;
  }
}

}  // namespace
}  // namespace swax
