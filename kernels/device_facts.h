// What this machine and build have to compute on, for a person: one row a fact.
#pragma once

#include <string>
#include <vector>

namespace swax {

struct DeviceFact {
  std::string name;  // "GPU 0"
  std::string text;
  bool fits = true;  // false: a job on this device would be refused or is not to be trusted
};
// The CPU backend, then each GPU with its self test (kernels/self_test.h). A machine without a GPU
// fits. Threads: any; takes a second or two where there is a GPU.
std::vector<DeviceFact> device_facts();

}  // namespace swax
