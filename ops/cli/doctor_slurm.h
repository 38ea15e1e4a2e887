// The checks of `swax doctor --slurm`: what jobs of `swax slurm` need of the cluster that is
// reached from here, and the times that decide how soon they go on. Threads: main thread, before
// others exist: programs are started.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ops/cli/doctor.h"

namespace swax {

// state_folder: it, or the nearest folder above it, must be one that all nodes see.
std::vector<DoctorRow> doctor_slurm(const std::string& state_folder);

// For tests: rows by what Slurm's programs print.
DoctorRow doctor_controller(std::string_view ping);   // scontrol ping
DoctorRow doctor_partitions(std::string_view sinfo);  // sinfo -h -o "%P|%a|%l|%D|%T", a line a row
DoctorRow doctor_mpi(std::string_view list);          // srun --mpi=list
std::vector<DoctorRow> doctor_times(std::string_view config);  // scontrol show config
DoctorRow doctor_shared_folder(const std::string& folder, int64_t file_system);  // statfs' f_type

}  // namespace swax
