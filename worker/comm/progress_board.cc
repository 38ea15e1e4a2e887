#include "worker/comm/progress_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "proto/base/files.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr int kRanksNamed = 8;

Status failed(const std::string& path, const char* what) {
  return failed_precondition(path + ": " + what + ": " + std::strerror(errno));
}

}  // namespace

Result<std::unique_ptr<ProgressBoard>> ProgressBoard::create(Collectives& host,
                                                             std::string_view key,
                                                             const std::string& folder) {
  const std::string path = join_path(folder, "swax-comm-" + std::string(key));
  const size_t bytes = sizeof(Line) * static_cast<size_t>(host.size());
  const Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return failed(path, "open");
  // Every rank of the host sets the same size; a new file reads as zeros.
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return failed(path, "ftruncate");
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return failed(path, "mmap");
  std::unique_ptr<ProgressBoard> board(new ProgressBoard(host.rank(), host.size(), memory));
  board->mine().present.store(1, std::memory_order_release);
  SWAX_TRY(host.barrier());
  // All have it open: whichever rank of the host comes first takes the name away.
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return failed(path, "unlink");
  return board;
}

ProgressBoard::~ProgressBoard() { ::munmap(lines_, sizeof(Line) * static_cast<size_t>(size_)); }

void ProgressBoard::give_up(std::string_view reason) {
  Line& line = mine();
  int64_t none = 0;
  if (!line.reason_bytes.compare_exchange_strong(none, -1)) return;
  const auto bytes = std::min<int64_t>(kReasonBytes, static_cast<int64_t>(reason.size()));
  std::memcpy(line.reason, reason.data(), static_cast<size_t>(bytes));
  line.reason_bytes.store(std::max<int64_t>(bytes, 1), std::memory_order_release);
}

bool ProgressBoard::all_known() const {
  for (int r = 0; r < size_; ++r) {
    if (!known(r)) return false;
  }
  return true;
}

ProgressBoard::Progress ProgressBoard::progress(int rank) const {
  const Line& l = line(rank);
  Progress p;
  p.completed = l.completed.load(std::memory_order_acquire);
  p.reached = l.reached.load(std::memory_order_acquire);
  p.asked = l.asked.load(std::memory_order_acquire);
  return p;
}

std::string ProgressBoard::given_up() const {
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    const int64_t bytes = line(r).reason_bytes.load(std::memory_order_acquire);
    if (bytes <= 0) continue;
    return "rank " + to_text(r) + ": " +
           printable({line(r).reason, static_cast<size_t>(bytes)}, kReasonBytes);
  }
  return {};
}

std::string ProgressBoard::name_late(const std::function<std::string(int rank)>& behind) const {
  int elsewhere = 0, late = 0;
  std::string text;
  for (int r = 0; r < size_; ++r) {
    if (!known(r)) {
      ++elsewhere;
      continue;
    }
    const std::string why = behind(r);
    if (why.empty() || ++late > kRanksNamed) continue;
    text += (late == 1 ? "late: rank " : ", rank ") + to_text(r) + " (" + why + ")";
  }
  if (late > kRanksNamed) text += " and " + to_text(late - kRanksNamed) + " more";
  if (late == 0) {
    text = elsewhere == 0 ? "all ranks are in it: the link or a device has stopped"
                          : "all ranks of this host are in it";
  }
  if (elsewhere > 0) text += "; " + to_text(elsewhere) + " ranks on other hosts are not known here";
  return text;
}

std::string ProgressBoard::late(int64_t call) const {
  return name_late([&](int rank) {
    const Progress p = progress(rank);
    if (p.reached >= call) return std::string();
    if (p.asked < call)
      return "has asked for " + to_text(p.asked) + " of " + to_text(call) + " calls";
    return "asked, but its device has not come so far: " + to_text(p.reached) + " of " +
           to_text(call) + " calls";
  });
}

std::string ProgressBoard::late_on_host(int64_t call) const {
  return name_late([&](int rank) {
    const int64_t asked = line(rank).host_asked.load(std::memory_order_acquire);
    if (asked >= call) return std::string();
    return "has made " + to_text(asked) + " of " + to_text(call) + " host calls";
  });
}

}  // namespace swax
