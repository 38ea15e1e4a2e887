// Goal: files are whole or absent after every failure, links are never followed when removing, and
// each failure has its code and names the path. Method: a scratch folder, forked children that are
// killed or limited, a pipe under a storm of signals.
#include "proto/base/files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "proto/base/failpoint.h"
#include "tests/proto/scratch_dir.h"

namespace swax {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

void put(const std::string& path, std::string_view bytes) {
  ASSERT_TRUE(write_atomic(path, bytes).ok()) << path;
}

// Runs `work` in a child and returns the wait status.
template <typename Work>
int in_child(Work work) {
  const pid_t pid = fork();
  SWAX_CHECK(pid >= 0);
  if (pid == 0) _exit(work());
  int status = 0;
  SWAX_CHECK(waitpid(pid, &status, 0) == pid);
  return status;
}

TEST(ReadFile, SizesAroundTheLimit) {
  const ScratchDir dir;
  const std::string bytes("a\0b\n", 4);
  put(dir / "f", bytes);
  EXPECT_EQ(*read_file(dir / "f", 4), bytes);
  EXPECT_EQ(*read_file(dir / "f", 1 << 30), bytes);
  EXPECT_EQ(read_file(dir / "f", 3).status().code(), Code::kResourceExhausted);
  EXPECT_EQ(read_file(dir / "f", 0).status().code(), Code::kResourceExhausted);
  put(dir / "empty", "");
  EXPECT_EQ(*read_file(dir / "empty", 0), "");
}

TEST(ReadFile, FilesThatDoNotTellTheirSize) {
  const auto status = read_file("/proc/self/status", 1 << 20);
  ASSERT_TRUE(status.ok());
  EXPECT_THAT(*status, HasSubstr("Name:"));
  EXPECT_EQ(read_file("/dev/zero", 100'000).status().code(), Code::kResourceExhausted);
}

TEST(ReadFile, FailuresNameThePath) {
  const ScratchDir dir;
  const auto missing = read_file(dir / "none", 10);
  EXPECT_EQ(missing.status().code(), Code::kNotFound);
  EXPECT_THAT(missing.status().message(), HasSubstr((dir / "none") + ": No such file"));
  EXPECT_EQ(read_file(dir.path(), 10).status().code(), Code::kInvalidArgument);
  put(dir / "f", "x");
  EXPECT_EQ(read_file(dir / "f/g", 10).status().code(), Code::kInvalidArgument);
}

TEST(WriteAtomic, ReplacesAndLeavesNothingBeside) {
  const ScratchDir dir;
  put(dir / "f", "old");
  const std::string large(3'000'000, 'x');
  put(dir / "f", large);
  EXPECT_EQ(*read_file(dir / "f", 1 << 23), large);
  EXPECT_THAT(*list_dir(dir.path()), ElementsAre("f"));
}

TEST(WriteAtomic, FailuresLeaveTheOldFile) {
  const ScratchDir dir;
  EXPECT_EQ(write_atomic(dir / "none/f", "x").code(), Code::kNotFound);
  ASSERT_TRUE(make_dirs(dir / "d").ok());
  EXPECT_EQ(write_atomic(dir / "d", "x").code(), Code::kInvalidArgument);
  EXPECT_THAT(*list_dir(dir.path()), ElementsAre("d"));
}

// A file size limit stands for a full disk: the write comes back short, then fails.
TEST(WriteAtomic, FullDiskIsResourceExhausted) {
  const ScratchDir dir;
  put(dir / "f", "old");
  const int status = in_child([&] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100'000, 100'000};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 2;
    return write_atomic(dir / "f", std::string(200'000, 'x')).code() == Code::kResourceExhausted
               ? 0
               : 1;
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(*read_file(dir / "f", 100), "old");
  EXPECT_THAT(*list_dir(dir.path()), ElementsAre("f"));
}

TEST(WriteAtomic, KilledBeforeRenameKeepsTheOldFile) {
  const ScratchDir dir;
  for (const bool renamed : {false, true}) {
    put(dir / "f", "old");
    const ScopedEnv env("SWAX_FAILPOINTS",
                        renamed ? "files.before_dir_sync:1" : "files.before_rename:1");
    const int status = in_child([&] {
      failpoints_init(-1);
      return write_atomic(dir / "f", "new").ok() ? 0 : 1;
    });
    EXPECT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(*read_file(dir / "f", 100), renamed ? "new" : "old");
  }
  const std::vector<std::string> names = *list_dir(dir.path());
  ASSERT_EQ(names.size(), 2U);  // and one leftover that a sweep can know by its end
  EXPECT_TRUE(names[1].ends_with(".tmp")) << names[1];
}

TEST(AppendLine, AppendsWholeLines) {
  const ScratchDir dir;
  const Fd fd(open((dir / "f").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  ASSERT_TRUE(append_line(fd.get(), "one").ok());
  ASSERT_TRUE(append_line(fd.get(), "").ok());
  EXPECT_EQ(append_line(fd.get(), "a\nb").code(), Code::kInvalidArgument);
  EXPECT_EQ(*read_file(dir / "f", 100), "one\n\n");
}

TEST(AppendLine, Failures) {
  const Fd full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(full.valid());
  const Status status = append_line(full.get(), "x");
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("No space left"));
  EXPECT_EQ(append_line(-1, "x").code(), Code::kInternal);
}

// Interrupted and short writes: a timer signals each 200 us while a slow reader drains a pipe.
TEST(AppendLine, SurvivesSignalsAndShortWrites) {
  static std::atomic<int> signals{0};
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  Fd reader(fds[0]);
  Fd writer(fds[1]);
  std::string line;
  for (int i = 0; i < 1'000'000; ++i) line += static_cast<char>('a' + i % 23);
  sigset_t alarm_set;
  sigemptyset(&alarm_set);
  sigaddset(&alarm_set, SIGALRM);
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &alarm_set, nullptr), 0);
  std::string got;
  std::thread drain([&] {  // inherits the blocked signal
    char buffer[4096];
    for (ssize_t n; (n = read(reader.get(), buffer, sizeof buffer)) > 0;) {
      got.append(buffer, static_cast<size_t>(n));
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  });
  struct sigaction action {};
  action.sa_handler = [](int) { signals.fetch_add(1); };
  struct sigaction old_action {};
  ASSERT_EQ(sigaction(SIGALRM, &action, &old_action), 0);  // no SA_RESTART
  ASSERT_EQ(pthread_sigmask(SIG_UNBLOCK, &alarm_set, nullptr), 0);
  itimerval timer{{0, 200}, {0, 200}};
  ASSERT_EQ(setitimer(ITIMER_REAL, &timer, nullptr), 0);
  const Status status = append_line(writer.get(), line);
  timer = {};
  ASSERT_EQ(setitimer(ITIMER_REAL, &timer, nullptr), 0);
  writer.reset();
  drain.join();
  ASSERT_EQ(sigaction(SIGALRM, &old_action, nullptr), 0);
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_GT(signals.load(), 10);
  EXPECT_TRUE(got == line + "\n");
}

TEST(MakeDirs, LevelsAndRepeats) {
  const ScratchDir dir;
  EXPECT_TRUE(make_dirs(dir / "a/b//c/").ok());
  EXPECT_TRUE(is_directory(dir / "a/b/c"));
  EXPECT_TRUE(make_dirs(dir / "a/b/c").ok());
  EXPECT_TRUE(make_dirs(dir / "x/../y").ok());
  EXPECT_TRUE(is_directory(dir / "y"));
  EXPECT_TRUE(make_dirs("/").ok());
  EXPECT_TRUE(make_dirs(".").ok());
  ASSERT_EQ(symlink((dir / "y").c_str(), (dir / "link").c_str()), 0);
  EXPECT_TRUE(make_dirs(dir / "link/z").ok());
  EXPECT_TRUE(is_directory(dir / "y/z"));
}

TEST(MakeDirs, Failures) {
  const ScratchDir dir;
  put(dir / "f", "x");
  EXPECT_EQ(make_dirs("").code(), Code::kInvalidArgument);
  EXPECT_EQ(make_dirs(dir / "f").code(), Code::kAlreadyExists);
  EXPECT_EQ(make_dirs(dir / "f/g").code(), Code::kAlreadyExists);
  EXPECT_EQ(make_dirs(dir / std::string(300, 'n')).code(), Code::kInvalidArgument);
  std::string deep = dir.path();
  for (int i = 0; i < 100'000; ++i) deep += "/d";
  EXPECT_EQ(make_dirs(deep).code(), Code::kInvalidArgument);
  EXPECT_THAT(*list_dir(dir.path()), ElementsAre("f"));
}

TEST(RemoveTree, RemovesDeepAndMissing) {
  const ScratchDir dir;
  ASSERT_TRUE(make_dirs(dir / "t/a/b/c").ok());
  for (int i = 0; i < 300; ++i) put(dir / ("t/a/f" + std::to_string(i)), "x");
  EXPECT_TRUE(remove_tree(dir / "t/").ok());
  EXPECT_FALSE(path_exists(dir / "t"));
  EXPECT_TRUE(remove_tree(dir / "t").ok());
  EXPECT_TRUE(remove_tree(dir / "t/none").ok());
  put(dir / "f", "x");
  EXPECT_TRUE(remove_tree(dir / "f").ok());
  EXPECT_FALSE(path_exists(dir / "f"));
  EXPECT_EQ(remove_tree("").code(), Code::kInvalidArgument);
  EXPECT_EQ(remove_tree("///").code(), Code::kInvalidArgument);
}

TEST(RemoveTree, DoesNotFollowLinks) {
  const ScratchDir dir;
  ASSERT_TRUE(make_dirs(dir / "keep").ok());
  put(dir / "keep/f", "x");
  ASSERT_TRUE(make_dirs(dir / "t").ok());
  ASSERT_EQ(symlink((dir / "keep").c_str(), (dir / "t/link").c_str()), 0);
  ASSERT_EQ(symlink("nowhere", (dir / "t/dangling").c_str()), 0);
  ASSERT_EQ(symlink((dir / "keep").c_str(), (dir / "top").c_str()), 0);
  EXPECT_TRUE(remove_tree(dir / "t").ok());
  EXPECT_TRUE(remove_tree(dir / "top/").ok());
  EXPECT_THAT(*list_dir(dir.path()), ElementsAre("keep"));
  EXPECT_EQ(*read_file(dir / "keep/f", 10), "x");
}

TEST(Sync, FilesAndFolders) {
  const ScratchDir dir;
  put(dir / "f", "x");
  EXPECT_TRUE(sync_file(dir / "f").ok());
  EXPECT_TRUE(sync_dir(dir.path()).ok());
  EXPECT_EQ(sync_file(dir / "none").code(), Code::kNotFound);
  EXPECT_EQ(sync_dir(dir / "none").code(), Code::kNotFound);
  EXPECT_EQ(sync_dir(dir / "f").code(), Code::kInvalidArgument);
}

TEST(Stat, SizesAndKinds) {
  const ScratchDir dir;
  put(dir / "f", "12345");
  EXPECT_EQ(*file_bytes(dir / "f"), 5);
  EXPECT_EQ(file_bytes(dir / "none").status().code(), Code::kNotFound);
  EXPECT_TRUE(path_exists(dir.path()));
  EXPECT_FALSE(path_exists(dir / "none"));
  EXPECT_FALSE(is_directory(dir / "f"));
  EXPECT_GT(*free_bytes(dir.path()), 0);
  EXPECT_EQ(free_bytes(dir / "none").status().code(), Code::kNotFound);
}

TEST(ListDir, SortedNames) {
  const ScratchDir dir;
  for (const char* name : {"b", "a", ".hidden", "B"}) put(dir / name, "");
  EXPECT_THAT(*list_dir(dir.path()), ElementsAre(".hidden", "B", "a", "b"));
  EXPECT_EQ(list_dir(dir / "none").status().code(), Code::kNotFound);
  EXPECT_EQ(list_dir(dir / "a").status().code(), Code::kInvalidArgument);
}

TEST(Paths, JoinAndParent) {
  EXPECT_EQ(join_path("a", "b"), "a/b");
  EXPECT_EQ(join_path("a/", "b"), "a/b");
  EXPECT_EQ(join_path("", "b"), "b");
  EXPECT_EQ(join_path("a", ""), "a");
  EXPECT_EQ(join_path("a", "/b"), "/b");
  EXPECT_EQ(join_path("/", "b"), "/b");
  EXPECT_EQ(parent_path("/a/b"), "/a");
  EXPECT_EQ(parent_path("/a//b//"), "/a");
  EXPECT_EQ(parent_path("/a"), "/");
  EXPECT_EQ(parent_path("/"), "/");
  EXPECT_EQ(parent_path("a"), ".");
  EXPECT_EQ(parent_path("a/b"), "a");
  EXPECT_EQ(parent_path(""), ".");
}

bool is_open(int fd) { return fcntl(fd, F_GETFD) != -1; }

TEST(Fd, OwnsItsDescriptor) {
  const auto fresh = [] { return open("/dev/null", O_RDONLY | O_CLOEXEC); };
  const int raw = fresh();
  {
    Fd a(raw);
    Fd b = std::move(a);
    EXPECT_FALSE(a.valid());  // NOLINT(bugprone-use-after-move)
    EXPECT_EQ(b.get(), raw);
    EXPECT_TRUE(is_open(raw));
  }
  EXPECT_FALSE(is_open(raw));
  Fd c(fresh());
  const int first = c.get();
  c = Fd(fresh());
  EXPECT_TRUE(is_open(c.get()));
  EXPECT_NE(c.get(), first);
  EXPECT_FALSE(is_open(first));
  errno = ERANGE;
  c.reset();
  EXPECT_EQ(errno, ERANGE);
}

TEST(LockFile, ExcludesUntilItsEnd) {
  const ScratchDir dir;
  {
    const Result<Fd> held = lock_file(dir / "lock");
    ASSERT_TRUE(held.ok());
    EXPECT_NE(fcntl(held->get(), F_GETFD) & FD_CLOEXEC, 0);
    const auto second = lock_file(dir / "lock");
    EXPECT_EQ(second.status().code(), Code::kFailedPrecondition);
    EXPECT_THAT(second.status().message(), HasSubstr(dir / "lock"));
  }
  EXPECT_TRUE(lock_file(dir / "lock").ok());
  EXPECT_EQ(lock_file(dir / "none/lock").status().code(), Code::kNotFound);
}

TEST(LockFile, DiesWithItsProcess) {
  const ScratchDir dir;
  EXPECT_EQ(in_child([&] {
              const Result<Fd> held = lock_file(dir / "lock");
              return held.ok() ? 0 : 1;
            }),
            0);
  EXPECT_TRUE(lock_file(dir / "lock").ok());
}

}  // namespace
}  // namespace swax
