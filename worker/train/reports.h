// What a rank tells the outside while it trains. Plain structs, so that the compute thread fills
// them without allocating; a reporter turns them into messages on its own thread and never blocks
// training.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "worker/train/state.h"

namespace swax {

struct StepReport {
  int64_t step = 0;  // optimizer steps done, this one included: 1..N
  int64_t window = 0;
  double loss = 0.0;  // mean nats per target
  double grad_norm = 0.0;
  int64_t targets = 0;
  int64_t tokens = 0;
  int64_t step_ns = 0;
  float lr = 0.0F;
  std::span<const DigestSums> digests;  // empty, or one per state tensor; copied by the sink
};

struct ValidationReport {
  int64_t step = 0;
  double loss = 0.0;
  double bits_per_byte = 0.0;
  int64_t targets = 0;
  int64_t text_bytes = 0;
  bool final = false;
};

class ReportSink {
 public:
  virtual ~ReportSink() = default;
  virtual void phase(std::string_view) {}  // load, warmup, train, save, validate, leaving
  virtual void step(
      const StepReport& report) = 0;  // compute thread; must not allocate or block for long
  virtual void validation(const ValidationReport& report) = 0;  // compute thread
  // Any thread. kind as in EventRecord.
  virtual void event(std::string_view kind, int64_t step, std::string_view text) = 0;
};

// Tells two sinks.
class TeeSink final : public ReportSink {
 public:
  TeeSink(ReportSink& a, ReportSink& b) : a_(a), b_(b) {}
  void phase(std::string_view name) override {
    a_.phase(name);
    b_.phase(name);
  }
  void step(const StepReport& report) override {
    a_.step(report);
    b_.step(report);
  }
  void validation(const ValidationReport& report) override {
    a_.validation(report);
    b_.validation(report);
  }
  void event(std::string_view kind, int64_t step, std::string_view text) override {
    a_.event(kind, step, text);
    b_.event(kind, step, text);
  }

 private:
  ReportSink& a_;
  ReportSink& b_;
};

}  // namespace swax
