#include "worker/agent/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>

#include "proto/base/text.h"

namespace swax {
namespace {

constexpr size_t kProcFileBytesMax = 4 * 1024 * 1024;
constexpr uint64_t kKernelThreadFlag = 0x00200000;  // PF_KTHREAD

std::optional<std::string> read_proc(pid_t pid, const char* file) {
  const std::string path = "/proc/" + to_text(pid) + "/" + file;
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return std::nullopt;
  std::string text;
  while (text.size() < kProcFileBytesMax) {
    char buffer[4096];
    const ssize_t got = ::read(fd.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(buffer, static_cast<size_t>(got));
  }
  return text;
}

template <typename T>
bool parse_number(std::string_view text, T* value) {
  const auto end = std::from_chars(text.data(), text.data() + text.size(), *value);
  return end.ec == std::errc{} && end.ptr == text.data() + text.size();
}

// struct pidfd_info of linux/pidfd.h (6.15), which the headers of older systems lack.
struct PidfdInfo {
  uint64_t mask = 0;
  uint64_t cgroup = 0;
  uint32_t pid = 0, tgid = 0, ppid = 0;
  uint32_t ids[8] = {};
  int32_t exit_code = 0;
};
constexpr uint64_t kPidfdInfoExit = 1U << 3;
constexpr unsigned long kPidfdGetInfo = _IOWR(0xFF, 11, PidfdInfo);

}  // namespace

std::optional<ProcessStat> read_process(pid_t pid) {
  const std::string text = read_proc(pid, "stat").value_or("");
  const size_t open = text.find('(');
  const size_t close = text.rfind(')');  // the name itself may hold brackets and spaces
  if (open == std::string::npos || close == std::string::npos || close < open) return std::nullopt;
  ProcessStat stat;
  stat.id.pid = pid;
  stat.name = text.substr(open + 1, close - open - 1);
  std::string_view rest(text);
  rest.remove_prefix(close + 2 <= text.size() ? close + 2 : text.size());
  while (!rest.empty() && rest.back() == '\n') rest.remove_suffix(1);
  const std::vector<std::string_view> fields = split(rest, ' ');
  // proc(5) counts fields from 1 with pid, (name), state = field 3: fields[n - 3] is field n.
  if (fields.size() < 50 || fields[0].size() != 1) return std::nullopt;
  stat.state = fields[0][0];
  uint64_t flags = 0;
  const bool whole = parse_number(fields[1], &stat.parent) &&
                     parse_number(fields[3], &stat.session) && parse_number(fields[6], &flags) &&
                     parse_number(fields[19], &stat.id.start_ticks) &&
                     parse_number(fields[49], &stat.wait_status);
  if (!whole) return std::nullopt;
  stat.kernel_thread = (flags & kKernelThreadFlag) != 0;
  return stat;
}

std::vector<ProcessStat> list_processes() {
  std::vector<ProcessStat> all;
  const Result<std::vector<std::string>> names = list_dir("/proc");
  if (!names.ok()) return all;
  for (const std::string& name : *names) {
    pid_t pid = 0;
    if (!parse_number(std::string_view(name), &pid)) continue;
    if (auto stat = read_process(pid)) all.push_back(std::move(*stat));
  }
  return all;
}

std::vector<ProcessStat> child_processes(pid_t parent) {
  std::vector<ProcessStat> children;
  const std::string tasks = "/proc/" + to_text(parent) + "/task";
  const Result<std::vector<std::string>> threads = list_dir(tasks);
  if (!threads.ok()) return children;
  for (const std::string& thread : *threads) {
    const auto text = read_proc(parent, ("task/" + thread + "/children").c_str());
    if (!text && path_exists(tasks + "/" + thread)) {
      // A kernel without CONFIG_PROC_CHILDREN: look at everybody.
      children = list_processes();
      std::erase_if(children, [parent](const ProcessStat& p) { return p.parent != parent; });
      return children;
    }
    const std::string pids = text.value_or("");
    for (const std::string_view word : split(pids, ' ')) {
      pid_t pid = 0;
      if (!parse_number(word, &pid)) continue;
      auto stat = read_process(pid);
      if (stat && stat->parent == parent) children.push_back(std::move(*stat));
    }
  }
  return children;
}

std::optional<std::string> process_environment(pid_t pid) { return read_proc(pid, "environ"); }

std::optional<std::string_view> environment_value(std::string_view environment,
                                                  std::string_view name) {
  while (!environment.empty()) {
    const size_t end = environment.find('\0');
    const std::string_view entry = environment.substr(0, end);
    if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=')
      return entry.substr(name.size() + 1);
    if (end == std::string_view::npos) break;
    environment.remove_prefix(end + 1);
  }
  return std::nullopt;
}

Fd open_process(const ProcessId& id) {
  Fd fd(static_cast<int>(::syscall(SYS_pidfd_open, id.pid, 0)));
  if (!fd.valid()) return fd;
  // The pid may have been given on between the look at it and the call.
  const auto stat = read_process(id.pid);
  if (!stat || stat->id != id) fd.reset();
  return fd;
}

bool signal_process(const Fd& process, int signal) {
  return ::syscall(SYS_pidfd_send_signal, process.get(), signal, nullptr, 0) == 0;
}

bool process_ended(const Fd& process) {
  pollfd p{.fd = process.get(), .events = POLLIN, .revents = 0};
  return ::poll(&p, 1, 0) == 1;
}

std::optional<int> ended_status(const Fd& process, const ProcessId& id) {
  const auto stat = read_process(id.pid);
  if (stat && stat->id == id && stat->state == 'Z') return stat->wait_status;
  PidfdInfo info;
  info.mask = kPidfdInfoExit;
  if (::ioctl(process.get(), kPidfdGetInfo, &info) == 0 && (info.mask & kPidfdInfoExit) != 0)
    return info.exit_code;
  return std::nullopt;
}

}  // namespace swax
