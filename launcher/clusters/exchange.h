// What the processes of one mpirun or srun tell each other before they can connect.
#pragma once

#include <string>

namespace trainctl::clusters {

class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual void put(const std::string& key, const std::string& value) = 0;
  /// What all have put before is there after it. All processes call it.
  virtual void fence() = 0;
  /// Of process `index`. Throws EnvError.
  virtual std::string get(int index, const std::string& key) = 0;
};

}  // namespace trainctl::clusters
