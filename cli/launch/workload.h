// What is to be launched: a network that trainctl trains itself, or a program of the user's.
#pragma once

#include <boost/asio/io_context.hpp>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "cli/launch/profile.h"
#include "engine/base/start_up.h"
#include "engine/spec/job_spec.h"
#include "launcher/live_status.h"
#include "launcher/supervisor.h"

namespace trainctl {

class Workload {
 public:
  virtual ~Workload() = default;

  virtual const JobSpec& spec() const = 0;
  /// What `trainctl plan --json` says of it.
  virtual nlohmann::ordered_json plan() const = 0;
  /// What its ranks run on, in words: "CPUs"; nothing where that is the program's business.
  virtual std::string device() const { return ""; }
  /// Makes what the ranks of one attempt share, anew each time: memory, store, port. Before any rank is started.
  virtual void prepare(int attempt) = 0;
  /// What a rank runs.
  virtual ProcessCommand command(const RankPlace& place, const RunDirectory& directory) = 0;
  /// Sets the callbacks of `launch` through which ranks are reached and observed.
  virtual void connect(Launch& launch) = 0;
  /// Whether every rank has come so far that its start is no longer in doubt.
  virtual bool is_up() const = 0;
  /// How far it is, and what each rank does.
  virtual void describe(LiveStatus& status) = 0;
  /// What is to be said of the run now, in a line, each thing once; or nothing. To be asked often.
  virtual std::string news(const RunDirectory&) { return ""; }
  /// After the ranks have ended: what they left to be said, in lines; or nothing. Throws EnvError.
  virtual std::string report(const RunDirectory&) { return ""; }
};

struct WorkloadOptions {
  StartUpClock start_up{};                ///< begins when the command does
  bool record = false;                    ///< networks: each rank writes the collectives of its first step
  std::optional<ProfileOptions> profile;  ///< networks: when each instruction of a few steps ran
};

/// Plans the job, and looks whether this machine can run it. Throws SpecError, EnvError. `loop` must outlive it.
std::unique_ptr<Workload> make_workload(JobSpec spec, const WorkloadOptions& options, boost::asio::io_context& loop);

}  // namespace trainctl
