// The rank's line to its node agent: a unix stream socket with frames of proto/frame.h. Carries
// phases, step records, validation, events, DURABLE and the end to the agent, and stop and save
// requests back. Training never waits for it: the queue is bounded, step records are dropped (and
// counted) when the agent does not read; what must arrive (durable, done, failure) is kept. A
// refusal or the end of the socket means that this attempt is over: the process leaves at once
// (exit 75), so no rank outlives its agent. Threads: reports from any thread; one background thread
// of its own does the socket.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "proto/control.pb.h"
#include "worker/train/reports.h"

namespace swax {

struct AgentLinkOptions {
  std::string socket_path;  // SWAX_AGENT_DIR/NODE.sock, at most 107 bytes
  pb::RankHello hello;
  std::function<void()> on_stop;  // checkpoint and leave
  std::function<void()> on_save;
};

class AgentLink final : public ReportSink {
 public:
  // Connects and says hello. kUnavailable when nobody listens.
  static Result<std::unique_ptr<AgentLink>> connect(AgentLinkOptions options);
  ~AgentLink() override;  // sends what is queued for at most two seconds
  void set_state_names(std::vector<std::string> names);
  void phase(std::string_view name) override;
  void step(const StepReport& report) override;
  void validation(const ValidationReport& report) override;
  void event(std::string_view kind, int64_t step, std::string_view text) override;
  void durable(const pb::RankDurable& report);
  void done(const pb::DoneReport& report);
  void report(const pb::HelloReport& report);
  void failure(std::string_view reason);
  // Waits until everything queued is with the agent; false after timeout_ms.
  bool flush(int timeout_ms);

 private:
  struct Impl;
  explicit AgentLink(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace swax
