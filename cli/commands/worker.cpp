// trainctl worker: runs one rank. Started by `trainctl run`, never by hand.
#include <CLI/CLI.hpp>
#include <csignal>
#include <memory>

#include "cli/commands/commands.h"
#include "cli/commands/worker/rank_process.h"
#include "cli/errors.h"
#include "cli/run/worker/crash.h"

namespace trainctl {
namespace {

int work(const RankArguments& options) {
  report_crashes();
  std::signal(SIGPIPE, SIG_IGN);  // a lost peer then causes an error that names it
  RankProcess rank(options);
  try {
    if (options.generate_fd >= 0)
      rank.generate();
    else
      options.evaluate ? rank.evaluate() : rank.train();
    return kExitDone;
  } catch (...) {
    rank.end_failed();
  }
}

}  // namespace

void add_worker_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<RankArguments>();
  auto* command = app.add_subcommand("worker", "Run one rank; started by trainctl run");
  command->group("");  // hidden
  command->add_option("log_dir", options->log_dir)->required();
  command->add_option("run", options->run)->required();
  command->add_option("--rank", options->rank)->required();
  command->add_option("--memory-fd", options->memory_fd)->required();
  command->add_option("--hosts", options->layout);
  command->add_option("--address", options->hosts.address);
  command->add_option("--gpu", options->gpu);
  command->add_option("--take-gpu", options->take_gpu);
  command->add_flag("--audits", options->audits);
  command->add_flag("--record", options->record);
  command->add_option("--profile", options->profile);
  command->add_option("--image-fd", options->image_fd);
  command->add_option("--snapshot-fd", options->snapshot_fd);
  command->add_option("--tables-fd", options->tables_fd);
  command->add_option("--cache-fd", options->cache_fd);
  command->add_option("--weights-fd", options->weights_fd);
  command->add_option("--failures", options->failures);
  command->add_option("--resume-from", options->resume);
  command->add_option("--generate", options->generate_fd);
  command->add_flag("--evaluate", options->evaluate);
  command->add_option("--predict", options->predict);
  command->add_option("--output", options->output);
  command->add_flag("--with-loss", options->with_loss);
  command->add_option("--start-up", options->start_up);
  command->callback([&chosen, options] { chosen = [options] { return work(*options); }; });
}

}  // namespace trainctl
