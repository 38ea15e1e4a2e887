// Times of training steps between reports, by attention window and by the way in which ranks
// exchanged; what a checkpoint did to them. Threads: step() from one thread, committed() from any.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace swax::test {

class StepTimes {
 public:
  // After the step with this number (from 1), which had this window and way.
  void step(int64_t number, int64_t window, int way, double loss);
  void committed(int64_t number);
  // Of steps after `settle`: medians, rates, and what the ways differ by.
  void print(int64_t settle, int ranks, int64_t tokens) const;
  // The same of saves: a save begins when its step is reported.
  void print_saves(int64_t settle, int64_t tokens) const;

 private:
  struct Step {
    int64_t number, window;
    int way;
    int64_t begin_ns, end_ns;
  };
  double median_s(int64_t settle, int64_t window, int way, size_t* count = nullptr) const;
  bool under_save(const Step& step) const;

  int64_t last_ns_ = 0;  // the report before
  std::vector<Step> steps_;
  mutable std::mutex mutex_;
  std::map<int64_t, int64_t> committed_ns_;  // by number of the step saved
};

}  // namespace swax::test
