#include "ops/cli/doctor.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "ops/cli/doctor_process.h"
#include "ops/cli/train_program.h"
#include "proto/base/build_info.h"
#include "proto/base/files.h"
#include "proto/base/text.h"
#include "worker/agent/mpirun.h"

namespace swax {
namespace {

constexpr int64_t kProcBytesMax = int64_t{16} << 20;
constexpr int64_t kProgramMs = 10'000;
// CUDA needs seconds to start where there are many GPUs, and each is tested.
constexpr int64_t kDevicesMs = 120'000;
constexpr int64_t kMemoryBytesMin = int64_t{1} << 30;
// What NCCL's transports of eight ranks take.
constexpr int64_t kSharedBytesMin = int64_t{64} << 20;
// A checkpoint of a small model, twice, and the coordinator's records.
constexpr int64_t kStateBytesMin = int64_t{1} << 30;

// The value behind "NAME:" or "NAME\t:" at the start of a line; empty: no such line.
std::string_view value_of(std::string_view text, std::string_view name) {
  for (const std::string_view line : split(text, '\n')) {
    if (line.substr(0, name.size()) != name) continue;
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    std::string_view value = line.substr(colon + 1);
    while (!value.empty() && value.front() == ' ') value.remove_prefix(1);
    return value;
  }
  return {};
}

DoctorRow memory_row(std::string_view meminfo) {
  const std::string_view text = value_of(meminfo, "MemAvailable");
  int64_t kib = 0;
  std::from_chars(text.data(), text.data() + text.size(), kib);
  return {.check = "memory",
          .fits = kib * 1024 >= kMemoryBytesMin,
          .found = bytes_text(kib * 1024) + " available",
          .advice = "at least " + bytes_text(kMemoryBytesMin) + " should be free"};
}

// Whether a file can be made and synced in `folder`, and what is free there.
DoctorRow folder_row(const std::string& check, const std::string& folder, int64_t bytes_min) {
  DoctorRow row{.check = check,
                .fits = false,
                .found = folder,
                .advice = "make it writable, with " + bytes_text(bytes_min) + " free"};
  const std::string probe = join_path(folder, ".swax-doctor-" + to_text(int64_t{::getpid()}));
  const Status written = write_atomic(probe, "swax doctor\n");
  ::unlink(probe.c_str());
  if (!written.ok()) {
    row.found = written.message();
    return row;
  }
  const auto free = free_bytes(folder);
  if (!free.ok()) {
    row.found = free.status().message();
    return row;
  }
  row.found = folder + ": writable, " + bytes_text(*free) + " free";
  row.fits = *free >= bytes_min;
  return row;
}

// The folder, or the nearest one above it that exists.
std::string existing(std::string path) {
  while (!path_exists(path) && path != "." && path != "/") path = parent_path(path);
  return path;
}

DoctorRow mpirun_row() {
  DoctorRow row{.check = "Open MPI", .fits = false, .found = "", .advice = ""};
  row.advice = "apt-get install openmpi-bin (4.1)";
  const auto program = find_program("mpirun");
  if (!program.ok()) {
    row.found = program.status().message();
    return row;
  }
  const auto output = program_output({*program, "--version"}, kProgramMs);
  if (!output.ok()) {
    row.found = output.status().message();
    return row;
  }
  const std::string line = printable(std::string_view(*output).substr(0, output->find('\n')));
  row.found = line + ", " + *program;
  row.fits = line.find("(Open MPI) 4.1") != std::string::npos;
  return row;
}

DoctorRow train_row() {
  const auto program = train_program();
  return {.check = "swax-train",
          .fits = program.ok(),
          .found = program.ok() ? *program + ", same build" : program.status().message(),
          .advice = "swax and swax-train of one build must lie in one folder"};
}

}  // namespace

DoctorRow doctor_processor(std::string_view cpuinfo) {
  constexpr std::string_view kNeeded[] = {"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"};
  const std::vector<std::string_view> flags = split(value_of(cpuinfo, "flags"), ' ');
  std::string missing;
  for (const std::string_view needed : kNeeded) {
    bool has = false;
    for (const std::string_view flag : flags) has = has || flag == needed;
    if (!has) missing += " " + std::string(needed);
  }
  const std::string model = printable(value_of(cpuinfo, "model name"));
  return {.check = "processor",
          .fits = missing.empty(),
          .found = missing.empty() ? model + ", x86-64-v3" : model + ", without" + missing,
          .advice = "swax is built for x86-64-v3"};
}

std::string doctor_library(std::string_view maps, std::string_view name) {
  const std::string file = "/lib" + std::string(name) + ".so";
  for (const std::string_view line : split(maps, '\n')) {
    const size_t path = line.find('/');
    if (path != std::string_view::npos && line.find(file, path) != std::string_view::npos) {
      return std::string(line.substr(path));
    }
  }
  return {};
}

std::vector<DoctorRow> doctor_machine(const std::string& state_folder) {
  std::vector<DoctorRow> rows;
  const auto text_of = [](const char* path) {
    auto text = read_file(path, kProcBytesMax);
    return text.ok() ? std::move(text).value() : std::string();
  };
  rows.push_back(
      {.check = "swax",
       .fits = true,
       .found = std::string(build_version()) + " build " + build_id() + " " + build_type()});
  utsname system{};
  if (::uname(&system) == 0) {
    rows.push_back({.check = "system",
                    .fits = true,
                    .found = std::string(system.sysname) + " " + system.release});
  }
  rows.push_back(doctor_processor(text_of("/proc/cpuinfo")));
  rows.push_back(memory_row(text_of("/proc/meminfo")));
  rows.push_back(folder_row("shared memory", "/dev/shm", kSharedBytesMin));
  rows.push_back(mpirun_row());
  const std::string maps = text_of("/proc/self/maps");
  for (const char* name : {"rocksdb", "zmq", "protobuf"}) {
    const std::string found = doctor_library(maps, name);
    rows.push_back({.check = std::string("lib") + name,
                    .fits = true,
                    .found = found.empty() ? "part of the program" : found});
  }
  rows.push_back(train_row());
  rows.push_back(folder_row("state folder", existing(state_folder), kStateBytesMin));
  return rows;
}

std::vector<DoctorRow> doctor_parse(std::string_view lines) {
  std::vector<DoctorRow> rows;
  for (const std::string_view line : split(lines, '\n')) {
    if (line.empty()) continue;
    const std::vector<std::string_view> parts = split(line, '\t');
    const bool known = parts.size() == 3 && (parts[1] == "ok" || parts[1] == "bad");
    rows.push_back({.check = known ? printable(parts[0]) : "swax-train",
                    .fits = known && parts[1] == "ok",
                    .found = printable(known ? parts[2] : line, 1000),
                    .advice = "GPU jobs do not start here, or must not be trusted"});
  }
  return rows;
}

std::vector<DoctorRow> doctor_devices() {
  const auto program = train_program();
  if (!program.ok()) return {};  // doctor_machine says it
  const auto lines = program_output({*program, "doctor"}, kDevicesMs);
  if (lines.ok()) return doctor_parse(*lines);
  return {{.check = "devices",
           .fits = false,
           .found = lines.status().message(),
           .advice = "run `swax-train doctor` to see what it says"}};
}

}  // namespace swax
