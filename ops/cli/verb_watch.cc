#include "ops/cli/client_follow.h"
#include "ops/cli/client_verbs.h"
#include "ops/cli/output.h"

namespace swax {

int verb_watch(const Args& args) {
  Result<ClientSession> session = connect_coordinator(args);
  if (!session.ok()) return fail(session.status());
  const Followed followed =
      follow_job(&*session, args.words().front(), {.timeout_ms = 0, .show = true});
  print_followed(followed, args.text("--output"), "");
  return followed.exit_code;
}

}  // namespace swax
