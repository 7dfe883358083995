// The ranks of a run on several hosts, reached through one agent per host (agent.h) over a HostLink: passes the board
// and the store from host to host, sends hosts the files that they lack, and writes the ranks' output.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/hosts/agent.h"
#include "launcher/hosts/bundle.h"
#include "launcher/hosts/copies.h"
#include "launcher/hosts/file_owners.h"
#include "launcher/hosts/file_queue.h"
#include "launcher/hosts/host_link.h"
#include "launcher/hosts/launcher_share.h"
#include "launcher/hosts/rank_outputs.h"
#include "launcher/hosts/received_files.h"
#include "launcher/hosts/transport.h"
#include "launcher/log_disk.h"
#include "launcher/rank_runner.h"
#include "launcher/supervisor.h"

namespace trainctl::hosts {

struct HostsOptions {
  std::shared_ptr<const Transport> transport;  ///< how hosts are reached; required
  double reconnect_seconds = 15;
  std::string interface;
  BindMode bind = BindMode::none;
  int first_attempt = 0;                     ///< number of the first attempt on these hosts
  bool hold_port = false;                    ///< the first host keeps a port for a server of rank 0
  std::map<std::string, std::string> files;  ///< for each agent's run folder: name -> text
  std::vector<Copy> copies;                  ///< for each host
  std::string program_folder;                ///< see KeptCopies
};

class AgentRanks : public RankRunner {
 public:
  /// Reports started ranks with pid 0. In the words, variables and folder of a command "{trainctl}" is the binary on
  /// the host, "{folder}" the agent's folder, "{logs}" its log folder,
  /// "{address}" the host's address for others, "{first_address}" and "{first_port}" those of the first host. All
  /// arguments must outlive it. Throws EnvError.
  AgentRanks(const Launch& launch, HostsOptions options, LauncherShare& share, LauncherSaves& saves,
             boost::asio::io_context& loop);
  AgentRanks(const AgentRanks&) = delete;
  AgentRanks& operator=(const AgentRanks&) = delete;
  ~AgentRanks() override;

  void listen(Events events) override;
  void start(const RankPlace& place, int attempt) override;
  void signal(int rank, int signal) override;
  /// See StepGate.
  void stop_after_step() override;
  bool is_heard(int rank) const override;
  bool is_frozen(int rank) override { return frozen_.contains(rank); }
  std::optional<RankError> error_of(int rank) override;
  void restart(int attempt) override;
  void look() override;
  void end() override;
  bool disk_hangs() const override { return disk_.hangs(); }

  /// Called when the ranks have ended and some have failed: recovers state from responding hosts
  /// (LauncherSaves::rescue).
  void rescue();
  /// Address at which a host's agent accepts connections that check a link, "10.0.0.2:4711"; "": none.
  std::string link_listener(const std::string& host) const;

 private:
  struct Host {
    int index = 0;
    std::string name;
    std::vector<RankPlace> places;
    std::vector<int> ranks;
    std::unique_ptr<HostLink> link;
    bool ready = false;
    std::string address;
    int port = 0, link_port = 0;
    std::map<std::string, std::string> link_faults;  ///< current check: name of an unreachable host -> reason
    bool has_checked_links = false;
    std::optional<uint64_t> highest_started;
    FileQueue to_give;
    bool wrote_elsewhere = false;  ///< it has sent a file that its ranks may not write, and the user was notified
  };
  double now() const;
  Host& host_of(int rank) { return *hosts_[static_cast<size_t>(host_of_.at(rank))]; }
  void await_children();
  void lost(Host& host, const std::string& why);
  void report_unreached();
  void ended(int rank, RankReport report);
  void ask_for_links();
  void note_links(Host& host, const std::string& text);
  void look_at_links();
  void send(Host& host, Message::Kind kind, int rank = -1, int64_t number = 0, std::string name = {},
            std::string text = {});
  Message prepare(Host& host);
  void send_starts();
  void handle(Host& host, Message& message);
  void carry_out(Host& host, Message& message);
  void ready(Host& host, const std::string& text);
  void rank_ended(int rank, RankReport report);
  void write_file(Host& host, const Message& message);
  void look_at_hosts();
  void give(Host& host);
  void give_copies(Host& host, const std::set<std::string>& names);
  void hold_gates();
  void close_gates();
  void send_saves();
  std::vector<std::vector<int>> answering() const;

  const Launch& launch_;
  const HostsOptions options_;
  LauncherShare& share_;
  LauncherSaves& saves_;
  boost::asio::io_context& loop_;
  Events events_;
  FileOwners owners_;
  ReceivedFiles received_;
  const Bundle bundle_;
  const std::string token_;
  LogDisk disk_;
  RankOutputs outputs_;
  boost::asio::signal_set children_;
  /// Expires with this object. Cancellation does not reach handlers that are already in the loop's queue.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::vector<std::unique_ptr<Host>> hosts_;
  std::map<int, int> host_of_;
  uint32_t attempt_ = 0;
  std::vector<RankPlace> to_start_;
  std::set<int> running_;  ///< ranks that Supervision considers running
  std::set<int> frozen_;
  std::vector<std::pair<int, RankReport>> complaints_;  ///< reports that wait for the check of the links
  double links_asked_ = 0;                              ///< when the check began
  bool has_lost_link_ = false;
  double unreached_since_ = 0;  ///< when the first host of this attempt could not be reached; 0: none so far
  std::map<std::string, int64_t> kept_bytes_;
  bool stop_asked_ = false, gates_closed_ = false, ending_ = false;
  bool holds_ = false;  ///< the gates are or will be held for a save
};

}  // namespace trainctl::hosts
