#include "ops/cli/client_follow.h"
#include "ops/cli/client_verbs.h"
#include "ops/cli/output.h"

namespace swax {

int verb_wait(const Args& args) {
  Result<ClientSession> session = connect_coordinator(args);
  if (!session.ok()) return fail(session.status());
  const FollowOptions options{.timeout_ms = static_cast<int64_t>(args.real("--timeout") * 1e3),
                              .show = false};
  const Followed followed = follow_job(&*session, args.words().front(), options);
  print_followed(followed, args.text("--output"), "");
  return followed.exit_code;
}

}  // namespace swax
