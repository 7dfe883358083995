// Reaches the nodes of a Slurm allocation with srun: no ssh is needed, and Slurm accounts for the ranks and limits
// them.
#include "launcher/clusters/srun.h"

#include <utility>

#include "engine/base/error.h"

namespace trainctl::clusters {
namespace {

class Srun : public hosts::Transport {
 public:
  explicit Srun(std::string job) : job_(std::move(job)) {}

  std::string name() const override { return "srun"; }
  std::vector<std::string> words(const std::string& host, const std::string& script) const override {
    check(script.find('\'') == std::string::npos, "a script for a host has no single quote");
    // One task per node, alongside other steps of the allocation, with all cores and GPUs of the node.
    return {"srun",       "--quiet",      "--jobid=" + job_,      "--overlap",
            "--nodes=1",  "--ntasks=1",   "--nodelist=" + host,   "--cpu-bind=none",
            "--mpi=none", "--unbuffered", "--kill-on-bad-exit=0", "sh",
            "-c",         script};
  }

 private:
  const std::string job_;
};

}  // namespace

std::unique_ptr<hosts::Transport> srun_transport(std::string job) { return std::make_unique<Srun>(std::move(job)); }

}  // namespace trainctl::clusters
