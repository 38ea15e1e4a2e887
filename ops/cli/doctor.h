// The checks of `swax doctor`: whether this machine has what swax needs. Threads: main thread,
// before others exist: programs are started.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace swax {

struct DoctorRow {
  std::string check;
  bool fits = true;
  std::string found;
  std::string advice{};  // what to do when it does not fit
};

// Of this process and machine: processor, memory, shared memory, Open MPI, the libraries that are
// loaded, swax-train, the state folder.
std::vector<DoctorRow> doctor_machine(const std::string& state_folder);
// Of the devices, as `swax-train doctor` says them.
std::vector<DoctorRow> doctor_devices();

// For tests.
// Lines "name<TAB>ok|bad<TAB>text"; a line of another form is a row that does not fit.
std::vector<DoctorRow> doctor_parse(std::string_view lines);
// x86-64-v3 by the text of /proc/cpuinfo.
DoctorRow doctor_processor(std::string_view cpuinfo);
// "rocksdb" -> "/usr/lib/librocksdb.so.7.8.3" by the text of /proc/self/maps; empty: not loaded.
std::string doctor_library(std::string_view maps, std::string_view name);

}  // namespace swax
