// Exchanges keys and values between the processes of one mpirun before they can connect, using PMIx, which Open MPI and
// Slurm's --mpi=pmix serve. The library is opened when it is needed.
#pragma once

#include <string>

#include "launcher/clusters/exchange.h"

namespace trainctl::clusters {

class Pmix : public Exchange {
 public:
  /// Throws EnvError if the library is not installed, or no server responds to this process.
  Pmix();
  Pmix(const Pmix&) = delete;
  Pmix& operator=(const Pmix&) = delete;
  ~Pmix() override;

  void put(const std::string& key, const std::string& value) override;
  void fence() override;
  std::string get(int index, const std::string& key) override;

 private:
  struct Library;
  Library* library_;
};

}  // namespace trainctl::clusters
