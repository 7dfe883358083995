// A run whose ranks are processes of this host.
#pragma once

#include "cli/run/launch/run.h"

namespace trainctl {

class LocalRun : public Run {
 public:
  LocalRun(std::unique_ptr<Workload> workload, RunDisplayOptions display, boost::asio::io_context& loop)
      : Run(std::move(workload), std::move(display), loop) {}

  void on_restart(int attempt) override;

 protected:
  Outcome run_ranks() override;
};

}  // namespace trainctl
