// PMI 1.1, served by the mpiexec of MPICH (Hydra) and its derivatives: lines over a socket that each process inherits.
//
//   request := "cmd=" word (" " key "=" value)* "\n"        the response is a line of the same form
//
//   init, barrier_in, finalize; put kvsname=… key=… value=…; get kvsname=… key=…        values have no blanks
//
// Source: MPICH's documentation "PMI v1 wire protocol", src/pmi.
#pragma once

#include <map>
#include <string>

#include "launcher/clusters/exchange.h"

namespace trainctl::clusters {

class Pmi : public Exchange {
 public:
  /// `index`: index of this process. `socket`: PMI_FD. Throws EnvError if mpiexec does not respond.
  explicit Pmi(int index);
  Pmi(int index, int socket);
  Pmi(const Pmi&) = delete;
  Pmi& operator=(const Pmi&) = delete;
  ~Pmi() override;

  void put(const std::string& key, const std::string& value) override;
  void fence() override;
  std::string get(int index, const std::string& key) override;

 private:
  using Fields = std::map<std::string, std::string>;
  /// Sends a request and returns the fields of the response. Throws EnvError unless its command is `answer` and its
  /// `rc`, if present, is 0.
  Fields ask(const std::string& request, const std::string& answer);
  std::string key_of(int index, const std::string& key) const;

  const int index_, socket_;
  std::string text_;   ///< bytes read beyond a line
  std::string space_;  ///< name of the key-value space of these processes
};

}  // namespace trainctl::clusters
