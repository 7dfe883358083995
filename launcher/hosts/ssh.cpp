// Reaches a host with the user's own ssh: its configuration, keys, agents, jump hosts, ports and host key checks are
// the same as on the command line.
#include "launcher/hosts/ssh.h"

#include <sstream>
#include <utility>

#include "engine/base/error.h"

namespace trainctl::hosts {
namespace {

class Ssh : public Transport {
 public:
  explicit Ssh(std::string ssh) : ssh_(std::move(ssh)) {}

  std::string name() const override { return "ssh"; }
  std::vector<std::string> words(const std::string& host, const std::string& script) const override {
    check(script.find('\'') == std::string::npos, "a script for ssh has no single quote");
    std::vector<std::string> words;
    std::istringstream text(ssh_);
    for (std::string word; text >> word;) words.push_back(word);
    if (words.empty()) throw EnvError("launch.ssh is empty");
    // ssh uses the first value of an option, so launch.ssh may set another ConnectTimeout.
    for (const char* option : {"-T", "-oBatchMode=yes", "-oClearAllForwardings=yes", "-oConnectTimeout=4", "--"})
      words.emplace_back(option);
    words.push_back(host);
    words.push_back("exec sh -c '" + script + "'");  // works with any login shell
    return words;
  }

 private:
  const std::string ssh_;
};

}  // namespace

std::unique_ptr<Transport> ssh_transport(std::string ssh) { return std::make_unique<Ssh>(std::move(ssh)); }

}  // namespace trainctl::hosts
