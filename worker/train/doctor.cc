#include "worker/train/doctor.h"

#include "kernels/device_facts.h"
#include "proto/base/text.h"
#include "worker/comm/device_collectives.h"
#include "worker/comm/mpi_collectives.h"

namespace swax {
namespace {

constexpr size_t kTextBytes = 1000;

std::string line(const DeviceFact& fact) {
  return printable(fact.name) + '\t' + (fact.fits ? "ok" : "bad") + '\t' +
         printable(fact.text, kTextBytes) + '\n';
}

}  // namespace

std::string doctor_lines() {
  std::string text = line({.name = "MPI library", .text = mpi_version()});
  for (const DeviceFact& fact : device_facts()) text += line(fact);
  return text + line({.name = "GPU collectives", .text = device_collectives_text()});
}

}  // namespace swax
