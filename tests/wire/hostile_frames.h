// Frames that no honest peer sends, from a seed: random bytes, damaged frames, and messages that
// were changed before they got a right header. Threads: one.
#pragma once

#include <string>
#include <vector>

#include "proto/base/rng.h"
#include "proto/control.pb.h"

namespace swax {

// One envelope of each kind that a coordinator may get, with its fields filled.
std::vector<pb::Envelope> sample_envelopes();

// `payload` under a right header, whatever it is.
std::string frame_of(std::string_view payload);

class HostileFrames {
 public:
  explicit HostileFrames(uint64_t seed);
  std::string next();

 private:
  uint32_t random(uint32_t below);
  void damage(std::string* bytes);

  const uint64_t seed_;
  uint64_t index_ = 0;
  std::vector<std::string> payloads_;
};

}  // namespace swax
