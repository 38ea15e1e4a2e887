// The verbs of `swax`: each reads its arguments, prints its result and returns the exit code.
// `run` has a header of its own (run.h). Threads: main thread.
#pragma once

#include <string>

#include "ops/cli/args.h"

namespace swax {

int verb_validate(const Args& args);
int verb_plan(const Args& args);
// A job of the service and a state folder are both named.
Status state_and_job(const std::string& verb);
int verb_status(const Args& args);
int verb_events(const Args& args);
int verb_checkpoints_list(const Args& args);
int verb_checkpoints_verify(const Args& args);
int verb_diff(const Args& args);
int verb_generate(const Args& args);
int verb_data_build(const Args& args);
int verb_data_verify(const Args& args);
int verb_data_list(const Args& args);
int verb_data_describe(const Args& args);
int verb_data_baseline(const Args& args);
VerbSpec coordinator_verb();
VerbSpec worker_verb();
VerbSpec doctor_verb();

}  // namespace swax
