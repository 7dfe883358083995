// trainctl verify: proves a job's plan, runs a reduced form of it under the plan and on one rank, and writes a
// certificate.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands/commands.h"
#include "cli/commands/job_arguments.h"
#include "cli/errors.h"
#include "cli/render/certificate_text.h"
#include "cli/render/terminal.h"
#include "cli/report/certificate_page.h"
#include "cli/run/saves/certificates.h"
#include "cli/watch_files.h"
#include "engine/train/verification/verify_job.h"

namespace trainctl {
namespace {

struct VerifyArguments {
  JobArguments job;
  int64_t steps = VerifyOptions{}.steps;
  std::string output;  ///< a folder; empty: that of the job's log directory
  bool json = false;
};

int verify(const VerifyArguments& options) {
  const JobSpec spec = options.job.load();
  if (!spec.has_command()) print_warnings(spec);
  const auto watch = watch_files(spec.launch.timeout_seconds);
  VerifyOptions verifying{.steps = options.steps, .timeout_seconds = spec.launch.timeout_seconds};
  verifying.trainctl = TRAINCTL_VERSION;
  const bool shows_progress = can_redraw(STDERR_FILENO);
  if (shows_progress)
    verifying.on_progress = [](const std::string& what) { std::cerr << "\r\x1b[Kverifying: " << what << std::flush; };
  const Certificate certificate = verify_job(spec, verifying);
  if (shows_progress) std::cerr << "\r\x1b[K" << std::flush;
  const std::string path = write_certificate(certificate, certificate_page(certificate),
                                             options.output.empty() ? certificate_folder(spec) : options.output);
  if (options.json)
    std::cout << to_json(certificate).dump(2) << "\n" << std::flush;
  else
    std::cout << certificate_text(certificate, output_width(STDOUT_FILENO)) << "certificate: " << path << "\n"
              << std::flush;
  return certificate.passed() ? kExitDone : kExitRankFailed;
}

}  // namespace

void add_verify_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<VerifyArguments>();
  auto* command = app.add_subcommand("verify", "Compare a job's plan with one rank, and write a certificate");
  options->job.add_to(*command);
  command->add_option("--steps", options->steps, "Steps of each run")
      ->check(CLI::Range(2, 1000))
      ->capture_default_str();
  command->add_option("--output", options->output, "Folder of the certificate; default: LOG_DIR/certificates")
      ->type_name("DIR");
  command->add_flag("--json", options->json, "Print the certificate as JSON");
  command->footer(
      R"(Proves the programs of all ranks. Then runs the job for a few steps with its ranks as threads on this host's CPU, in
fp32 and from initial weights, and compares it with one rank: losses, gradients, weights and optimizer states, bytes
sent, memory, a second run bit for bit, and runs that resume from a checkpoint. A large job is reduced first: smaller
batch, shorter sequences, fewer repeated blocks, narrower layers. Exit code 5 if a check fails.

The certificate is written to LOG_DIR/certificates as JSON and HTML. `trainctl run` of the same job stores it with the
checkpoints, and `trainctl checkpoint show` reports it.

Examples:
  trainctl verify job.yaml
  trainctl verify job.yaml parallel.stages=2 launch.ranks=4
  trainctl verify job.yaml --steps 10 --json | jq '.checks[] | {name, status, summary}')");
  command->callback([&chosen, options] { chosen = [options] { return verify(*options); }; });
}

}  // namespace trainctl
