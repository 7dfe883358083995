// What the processes of one mpirun tell each other before they can connect: keys and values of PMIx, which Open MPI and
// Slurm's --mpi=pmix serve. The library is opened when it is needed.
#pragma once

#include <string>
#include <vector>

namespace trainctl::clusters {

class Pmix {
 public:
  /// Throws EnvError if the library is not there, or no server answers this process.
  Pmix();
  Pmix(const Pmix&) = delete;
  Pmix& operator=(const Pmix&) = delete;
  ~Pmix();

  void put(const std::string& key, const std::string& value);
  /// What all have put before is there after it. All processes call it.
  void fence();
  /// Of process `index`. Throws EnvError.
  std::string get(int index, const std::string& key);

 private:
  struct Library;
  Library* library_;
};

}  // namespace trainctl::clusters
