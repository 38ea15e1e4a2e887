// The verbs that talk to a coordinator, and their rows of the verb table. Threads: main thread.
#pragma once

#include <vector>

#include "ops/cli/args.h"

namespace swax {

int verb_submit(const Args& args);
int verb_list(const Args& args);
int verb_service_status(const Args& args);  // `status` without --state
int verb_service_events(const Args& args);  // `events` without --state
int verb_service_checkpoints(const Args& args);
int verb_logs(const Args& args);
int verb_watch(const Args& args);
int verb_wait(const Args& args);
int verb_cancel(const Args& args);
int verb_resume(const Args& args);
int verb_nodes(const Args& args);

OptionSpec follow_option();  // -f
std::vector<VerbSpec> client_verbs();

}  // namespace swax
