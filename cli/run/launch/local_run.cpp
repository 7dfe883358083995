// A run whose ranks are processes of this host.
#include "cli/run/launch/local_run.h"

#include "cli/run/launch/metrics_file.h"
#include "launcher/spawn.h"

namespace trainctl {

Outcome LocalRun::run_ranks() {
  const Launch local = launch();
  PosixProcessRunner runner;
  return supervise(local, runner, loop());
}

void LocalRun::on_restart(int attempt) {
  Run::on_restart(attempt);
  if (!spec().has_command()) keep_metrics(directory(), reports().first_step());
}

}  // namespace trainctl
