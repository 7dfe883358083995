// Exchanges keys and values between the processes of one mpirun or srun before they can connect.
#pragma once

#include <string>

namespace trainctl::clusters {

class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual void put(const std::string& key, const std::string& value) = 0;
  /// Call it in all processes. Afterwards get() finds everything that any process has put before.
  virtual void fence() = 0;
  /// Returns the value that process `index` has put. Throws EnvError.
  virtual std::string get(int index, const std::string& key) = 0;
};

}  // namespace trainctl::clusters
