// Goal: the board on which ranks of one host say how far they are names the late ones, and what the
// ranks of other hosts leave out is said. Method: ranks as threads, and groups whose second half
// uses another folder, as on another host.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "proto/base/files.h"
#include "worker/comm/local_collectives.h"
#include "worker/comm/progress_board.h"

namespace swax::test {
namespace {

using Boards = std::vector<std::unique_ptr<ProgressBoard>>;

class TempFolder {
 public:
  TempFolder() : path_(testing::TempDir() + "swax-board-XXXXXX") {
    EXPECT_NE(::mkdtemp(path_.data()), nullptr);
  }
  ~TempFolder() { EXPECT_TRUE(remove_tree(path_).ok()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

Boards make_boards(int ranks, const std::function<std::string(int)>& folder) {
  auto handles = make_local_collectives(ranks);
  Boards boards(handles.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < handles.size(); ++r) {
    threads.emplace_back([&, r] {
      auto made = ProgressBoard::create(*handles[r], "test", folder(static_cast<int>(r)));
      ASSERT_TRUE(made.ok()) << made.status().to_string();
      boards[r] = std::move(made).value();
    });
  }
  for (std::thread& t : threads) t.join();
  return boards;
}

TEST(ProgressBoard, NamesTheLateRanks) {
  const TempFolder folder;
  const Boards boards = make_boards(3, [&](int) { return folder.path(); });
  for (const int rank : {0, 2}) {
    boards[rank]->asked(4);
    boards[rank]->reached(4);
    boards[rank]->completed(3);
  }
  boards[1]->asked(3);
  boards[1]->reached(3);
  boards[1]->completed(3);
  EXPECT_EQ(boards[0]->late(4), "late: rank 1 (has asked for 3 of 4 calls)");
  boards[1]->asked(5);
  EXPECT_EQ(boards[2]->late(4),
            "late: rank 1 (asked, but its device has not come so far: 3 of 4 calls)");
  boards[1]->reached(4);
  EXPECT_EQ(boards[2]->late(4), "all ranks are in it: the link or a device has stopped");
  EXPECT_EQ(boards[0]->progress(1).asked, 5);
  for (const auto& board : boards) EXPECT_TRUE(board->all_known());
}

TEST(ProgressBoard, NamesTheLateRanksOfAHostCall) {
  const TempFolder folder;
  const Boards boards = make_boards(3, [&](int) { return folder.path(); });
  boards[0]->host_asked(7);
  boards[1]->host_asked(7);
  boards[2]->host_asked(6);
  EXPECT_EQ(boards[0]->late_on_host(7), "late: rank 2 (has made 6 of 7 host calls)");
  boards[2]->host_asked(7);
  EXPECT_EQ(boards[0]->late_on_host(7), "all ranks are in it: the link or a device has stopped");
}

TEST(ProgressBoard, LeavesNoFile) {
  const TempFolder folder;
  const Boards boards = make_boards(4, [&](int) { return folder.path(); });
  const auto names = list_dir(folder.path());
  ASSERT_TRUE(names.ok());
  EXPECT_TRUE(names->empty());
}

TEST(ProgressBoard, HearsOfARankThatGivesUp) {
  const TempFolder folder;
  const Boards boards = make_boards(2, [&](int) { return folder.path(); });
  EXPECT_EQ(boards[0]->given_up(), "");
  boards[1]->give_up(std::string(1000, 'x'));
  boards[1]->give_up("a second reason");
  EXPECT_EQ(boards[0]->given_up().find("rank 1: xxx"), 0U);
  EXPECT_EQ(boards[0]->given_up().find("second"), std::string::npos);
  EXPECT_EQ(boards[1]->given_up(), "");
}

TEST(ProgressBoard, SaysWhatItCannotKnow) {
  const TempFolder here, there;
  const Boards boards = make_boards(4, [&](int r) { return r < 2 ? here.path() : there.path(); });
  EXPECT_TRUE(boards[0]->known(1));
  EXPECT_FALSE(boards[0]->known(2));
  for (const auto& board : boards) EXPECT_FALSE(board->all_known());
  boards[0]->reached(1);
  boards[1]->reached(1);
  EXPECT_EQ(boards[0]->late(1),
            "all ranks of this host are in it; 2 ranks on other hosts are not known here");
}

TEST(ProgressBoard, RefusesAFolderThatIsNotThere) {
  const auto handles = make_local_collectives(1);
  const auto made = ProgressBoard::create(*handles[0], "test", "/nowhere");
  EXPECT_EQ(made.status().code(), Code::kFailedPrecondition);
  EXPECT_NE(made.status().message().find("/nowhere/swax-comm-test"), std::string::npos);
}

}  // namespace
}  // namespace swax::test
