// trainctl agent: supervises the ranks of its host for a launcher on another host. Started by `trainctl run` over ssh,
// never by hand.
#include "launcher/hosts/agent.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands/commands.h"
#include "cli/run/worker/host_share.h"
#include "engine/base/error.h"
#include "launcher/clusters/pods.h"
#include "launcher/clusters/remote_listener.h"
#include "launcher/hosts/link_check.h"
#include "launcher/hosts/probe.h"
#include "launcher/hosts/relay.h"
#include "launcher/own_program.h"

namespace trainctl {
namespace {

struct AgentArguments {
  std::string id;
  bool join = false;
  std::string interface;          ///< network interface for a probe
  std::string to;                 ///< address and port whose link is checked
  std::string installed, loader;  ///< the bundle that this binary belongs to; empty: not a bundle
};

/// A copied binary is started through the loader of its bundle.
std::vector<std::string> own_words(const AgentArguments& options) {
  if (options.installed.empty()) return {own_program()};
  const std::string lib = options.installed + "/lib";
  return {lib + "/" + options.loader, "--library-path", lib, options.installed + "/bin/trainctl"};
}

/// Used in place of an id: by `trainctl hosts`, and by a run that checks whether a broken link works again.
constexpr const char *kProbe = "probe", *kReach = "reach";

int serve_agent(const AgentArguments& options) {
  if (options.id == kProbe) return hosts::probe_this_host(options.interface);
  if (options.id == kReach) return hosts::report_reach(options.to);
  return hosts::relay_to_agent(options.id, !options.join, [&](const std::string& folder, int listener) {
    hosts::AgentOptions agent;
    agent.folder = folder;
    agent.self = own_words(options);
    agent.listener = listener;
    agent.share = make_host_share();
    return hosts::serve_as_agent(std::move(agent));
  });
}

struct DialOptions {
  std::string script;
  int port = 0;
  std::string name;
  std::vector<std::string> addresses;
};

int dial(const DialOptions& options) {
  const char* token = std::getenv(clusters::kTokenVariable);
  if (token == nullptr) throw EnvError(std::string(clusters::kTokenVariable) + " is not set");
  return clusters::dial({options.name, options.addresses, options.port}, token, options.script);
}

}  // namespace

void add_dial_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<DialOptions>();
  auto* command = app.add_subcommand(
      "dial", "Run a script through a remote-execution listener (launcher/clusters/remote_listener.h)");
  command->group("");  // hidden
  command->add_option("script", options->script)->required();
  command->add_option("port", options->port)->required();
  command->add_option("name", options->name)->required();
  command->add_option("addresses", options->addresses)->required();
  command->callback([&chosen, options] { chosen = [options] { return dial(*options); }; });
}

void add_agent_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<AgentArguments>();
  auto* command = app.add_subcommand("agent", "Supervise the ranks of one host; started by trainctl run over ssh");
  command->group("");  // hidden
  command->add_option("id", options->id)->required();
  command->add_flag("--join", options->join);
  command->add_option("--interface", options->interface);
  command->add_option("--to", options->to);
  command->add_option("--installed", options->installed);
  command->add_option("--loader", options->loader);
  command->callback([&chosen, options] { chosen = [options] { return serve_agent(*options); }; });
}

}  // namespace trainctl
