// The agent of a host: starts and supervises the ranks that run there, for a launcher on another host.
#include "launcher/hosts/agent.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "engine/base/error.h"
#include "engine/base/machine_limits.h"
#include "engine/base/put_all.h"
#include "engine/base/text.h"
#include "launcher/hosts/address.h"
#include "launcher/hosts/agent_connection.h"
#include "launcher/hosts/copies.h"
#include "launcher/hosts/file_watch.h"
#include "launcher/hosts/link_check.h"
#include "launcher/hosts/placeholders.h"
#include "launcher/hosts/report_json.h"
#include "launcher/local_ranks.h"
#include "launcher/protocol.h"
#include "launcher/rank_error.h"
#include "launcher/reserved_port.h"
#include "launcher/store.h"

namespace trainctl::hosts {
namespace {

namespace asio = boost::asio;
namespace fs = std::filesystem;
using Json = nlohmann::json;
using Kind = Message::Kind;

constexpr auto kTick = std::chrono::milliseconds(25);
constexpr double kAliveSeconds = 0.5, kFilesSeconds = 0.25, kFrozenSeconds = 0.5;
constexpr size_t kOutputPiece = 256 << 10;
/// The time that the agent waits at the end for the launcher to receive everything.
constexpr double kFarewellSeconds = 5;
/// More than any job needs, and small enough that sums of them do not overflow.
constexpr double kMostSeconds = 1e6;
constexpr size_t kMostFault = 16 << 10;

/// Returns whether the name is that of a file directly in a folder.
bool is_file_name(const fs::path& name) {
  return !name.empty() && !name.has_parent_path() && name != "." && name != "..";
}

class Agent : public LogSink, public RankProgram {
 public:
  explicit Agent(AgentOptions options)
      : options_(std::move(options)),
        connection_(loop_, options_.listener,
                    {.message = [this](const Message& message) { received(message); },
                     .confirmed = [this] { report_saves(); }}),
        timer_(loop_),
        terms_(loop_, SIGTERM, SIGINT) {
    std::signal(SIGPIPE, SIG_IGN);
  }
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  int run() {
    connection_.accept();
    terms_.async_wait([this](const boost::system::error_code& error, int) {
      if (!error) leave();
    });
    tick();
    while (!left_ && loop_.run_one() > 0) {
    }
    ranks_.reset();
    runner_.reset();
    std::error_code ignored;
    fs::remove_all(options_.folder, ignored);
    return 0;
  }

  // The ranks' program.
  ProcessCommand command(const RankPlace& place, int) override { return commands_.at(place.rank); }
  void ended(int rank, bool failed) override { options_.share->ended(rank, failed); }

  // The ranks' output.
  void open(uint32_t stream, int rank, bool is_error, int) override {
    streams_[stream] = {rank, is_error ? "stderr" : "stdout"};
  }
  void write(uint32_t stream, std::string_view bytes, int64_t ns) override {
    const auto& [rank, name] = streams_.at(stream);
    for (; !bytes.empty(); bytes.remove_prefix(std::min(kOutputPiece, bytes.size())))
      send(Kind::output, rank, ns, name, std::string(bytes.substr(0, kOutputPiece)));
  }
  void close(uint32_t stream) override { streams_.erase(stream); }
  bool is_full() const override { return connection_.is_full(); }

 private:
  using Clock = std::chrono::steady_clock;
  double now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  /// Returns whether `seconds` have passed since it was last true for this `last`.
  bool is_due(double& last, double seconds) const {
    if (now() - last < seconds) return false;
    last = now();
    return true;
  }

  void send(Kind kind, int rank = -1, int64_t number = 0, std::string name = {}, std::string text = {}) {
    connection_.send({kind, attempt_, rank, number, std::move(name), std::move(text)});
  }

  // Commands of the launcher.

  void received(const Message& message) {
    try {
      handle(message);
    } catch (const std::exception& error) {  // the connection and the other ranks are not affected
      refuse_attempt(error.what());
    }
  }

  /// Commands may arrive in any order. They cannot be carried out before the stage `prepared`.
  ///
  ///   idle ──prepare──> prepared ──start──> … ──prepare of a later attempt──> prepared …
  ///     └──prepare, which fails──> refused ──prepare of a later attempt──> prepared …
  ///   each ──end──> leaving
  enum class Stage { idle, refused, prepared, leaving };

  void handle(const Message& message) {
    if (message.kind == Kind::end) return begin_farewell();
    if (stage_ == Stage::leaving) return;
    if (message.kind == Kind::prepare) {
      if (stage_ == Stage::idle || message.attempt > attempt_) prepare(message);
      return;
    }
    if (message.attempt != attempt_) return;
    // A rank that was started before the attempt was refused can still be ended.
    if (message.kind == Kind::signal && running_.contains(message.rank))
      return ranks_->signal(message.rank, static_cast<int>(message.number));
    if (stage_ != Stage::prepared) return;
    switch (message.kind) {
      case Kind::start:
        return start(message);
      case Kind::hold:
        return send(Kind::gates_held, -1, static_cast<int64_t>(options_.share->hold()));
      case Kind::stop:
        return options_.share->stop_after(static_cast<uint64_t>(message.number));
      case Kind::release:
        return options_.share->release();
      case Kind::give:
        return give(message);
      case Kind::copy:
      case Kind::keep:
        return take_copy(message);
      case Kind::save:
        return options_.share->take({message.name, message.rank, message.number, message.text});
      case Kind::board:
        return options_.share->apply(message.text);
      case Kind::value:
        store_->put(message.name, message.text);
        return;
      case Kind::links:
        return look_at_links(message);
      default:
        return;
    }
  }

  void prepare(const Message& message) {
    attempt_ = message.attempt;
    started_.clear();
    bool lacks_files = false;
    try {
      if (!running_.empty()) throw EnvError("ranks of the previous attempt are still running on this host");
      const Json json = Json::parse(message.text);
      reconnect_seconds_ = seconds_in(json, "reconnect");
      const bool first = !ranks_;
      if (first) make_ranks(json);
      std::vector<int> numbers;
      for (const RankPlace& place : launch_->cluster.places) numbers.push_back(place.rank);
      fs::remove_all(given());
      lacks_files = options_.share->prepare(json.at("workload"), numbers, given());
      store_token_ = store::random_token();
      store_ = std::make_unique<StoreServer>(
          loop_, store_token_,
          [this](const std::string& key, const std::string& value) { send(Kind::value, -1, 0, key, value); });
      port_ = json.at("hold_port").get<bool>() ? std::make_unique<ReservedPort>() : nullptr;
      address_ = own_address(json.at("interface").get<std::string>());
      if (!link_listener_) link_listener_.emplace(loop_, address_);
      prepare_copies(json);
      if (!first) ranks_->restart(static_cast<int>(attempt_));
    } catch (const Json::exception& error) {
      return refuse_attempt(std::string("protocol mismatch: install the same version on all hosts: ") + error.what());
    } catch (const std::exception& error) {
      return refuse_attempt(error.what());
    }
    stage_ = Stage::prepared;
    const Json ready = {{"address", address_},
                        {"port", port_ ? port_->port() : 0},
                        {"link_port", link_listener_->port()},
                        {"cores", std::thread::hardware_concurrency()},
                        {"lacks_files", lacks_files},
                        {"lacks_copies", copies_->missing()}};
    send(Kind::ready, -1, 0, "", ready.dump());
  }

  /// Rejects the attempt: none of its ranks is started here, even if the launcher does not know yet.
  void refuse_attempt(std::string why) {
    if (stage_ != Stage::leaving) stage_ = Stage::refused;
    if (why.size() > kMostFault) why.resize(kMostFault);
    send(Kind::refused, -1, 0, "", std::move(why));
  }

  void prepare_copies(const Json& json) {
    std::vector<KeptCopies::Wanted> wanted;
    for (const Json& copy : json.at("copies"))
      wanted.push_back({copy.at(0).get<std::string>(), copy.at(1).get<std::string>()});
    copies_.emplace(options_.folder, json.at("program_folder").get<std::string>(), std::move(wanted));
    if (copies_->missing().empty()) copies_->link();
  }

  void take_copy(const Message& message) {
    const size_t slash = message.name.find('/');
    const std::string name = message.name.substr(0, slash);
    const std::string file = slash == std::string::npos ? "" : message.name.substr(slash + 1);
    try {
      if (message.kind == Kind::copy)
        return copies_->write(name, file, message.number, message.text, message.rank == 1);
      copies_->keep(name);
      if (copies_->missing().empty()) copies_->link();
    } catch (const EnvError& error) {
      refuse_attempt(error.what());
    }
  }

  static double seconds_in(const Json& json, const char* name) {
    const auto seconds = json.at(name).get<double>();
    if (!(seconds >= 0 && seconds <= kMostSeconds))
      throw EnvError(std::string("launch.") + name + " is not a valid time");
    return seconds;
  }

  /// The ranks of this host must be distinct, and their local numbers must count from 0.
  static Cluster cluster_of(const Json& json) {
    Cluster cluster;
    const auto host = json.at("host").get<std::string>();
    const Json& places = json.at("places");
    std::set<int> ranks;
    for (const Json& place : places) {
      const auto local = static_cast<int>(cluster.places.size());
      const int rank = place.at(0).get<int>();
      if (rank < 0 || !ranks.insert(rank).second || place.at(1).get<int>() != local)
        throw EnvError("the launcher sent inconsistent ranks for this host");
      cluster.places.push_back({rank, host, local, static_cast<int>(places.size())});
    }
    if (ranks.empty()) throw EnvError("no rank is assigned to this host");
    return cluster;
  }

  /// Prepares the run that the launcher sent: its folder and files, the binding to cores, and the limits.
  void make_ranks(const Json& json) {
    Cluster cluster = cluster_of(json);
    const int run = json.at("run").get<int>();
    if (run < 0) throw EnvError("the launcher sent an invalid run number");
    const auto bind = static_cast<BindMode>(json.at("bind").get<int>());
    if (bind != BindMode::none && bind != BindMode::core && bind != BindMode::numa)
      throw EnvError("the launcher sent an unknown value of launch.bind");
    const std::string logs = options_.folder + "/logs";
    RunDirectory directory(logs, run);
    for (const RankPlace& place : cluster.places) fs::create_directories(directory.rank_path(place.rank));
    files_.emplace(directory.path());
    for (const auto& [name, text] : json.at("files").items()) {
      if (!is_file_name(name)) throw EnvError("'" + name + "' is not a valid file name for the run");
      directory.write(name, text.get<std::string>(), FileReaders::owner);  // the job contains values of env
      files_->skip(name);
    }
    launch_.emplace(
        Launch{.cluster = std::move(cluster), .directory = directory, .program = *this, .observer = unobserved_});
    launch_->limits.ranks_explain = json.at("explain").get<bool>();
    launch_->limits.grace_seconds = seconds_in(json, "grace");
    launch_->bindings = bindings(launch_->cluster, read_topology(), bind);
    runner_ = std::make_unique<PosixProcessRunner>();
    ranks_ = std::make_unique<LocalRanks>(*launch_, *runner_, loop_, this);
    ranks_->listen(
        {.started =
             [this](int rank) {
               running_[rank] = false;
               send(Kind::started, rank);
             },
         .failed_to_start = [this](int rank, const std::string& why) { send(Kind::no_start, rank, 0, "", why); },
         .ended = [this](int rank, const RankReport& report) { rank_ended(rank, report); },
         .notice = [this](const std::string& text) { send(Kind::notice, -1, 0, "", text); }});
  }

  std::string given() const { return options_.folder + "/given"; }

  void give(const Message& message) {
    if (!is_file_name(message.name) || message.number < 0)
      return refuse_attempt("'" + message.name + "' is not a valid name for a received file");
    std::error_code unmade;  // on failure, opening the file fails too
    fs::create_directories(given(), unmade);
    const std::string path = given() + "/" + message.name;
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    const bool is_written = fd >= 0 && lseek(fd, message.number, SEEK_SET) >= 0 && put_all(fd, message.text);
    const std::string fault = describe_errno(errno);
    if (fd >= 0) ::close(fd);
    if (!is_written) refuse_attempt("cannot write " + path + ": " + fault);
  }

  void look_at_links(const Message& message) {
    std::vector<LinkPeer> peers;
    const Json json = Json::parse(message.text, nullptr, false);
    try {
      for (const Json& peer : json) peers.push_back({peer.at(0), peer.at(1), peer.at(2)});
    } catch (const Json::exception&) {
      return;
    }
    check_links(loop_, peers, [this, attempt = message.attempt](const std::map<std::string, std::string>& faults) {
      if (attempt == attempt_) send(Kind::links, -1, 0, "", Json(faults).dump());
    });
  }

  void start(const Message& message) {
    const auto& places = launch_->cluster.places;
    const auto place =
        std::find_if(places.begin(), places.end(), [&](const RankPlace& p) { return p.rank == message.rank; });
    if (place == places.end() || !started_.insert(message.rank).second) return;
    try {
      commands_[message.rank] = command_of(message.rank, Json::parse(message.text));
    } catch (const Json::exception& error) {
      return send(Kind::no_start, message.rank, 0, "",
                  std::string("protocol mismatch: install the same version on all hosts: ") + error.what());
    } catch (const EnvError& error) {
      return send(Kind::no_start, message.rank, 0, "", error.what());
    }
    ranks_->start(*place, static_cast<int>(attempt_));
  }

  /// The command of a rank, with the placeholders filled in for this host.
  ProcessCommand command_of(int rank, const Json& json) const {
    ProcessCommand command;
    const auto filled = [&](const std::string& text) {
      return fill_placeholders(text, {{"logs", options_.folder + "/logs"},
                                      {"folder", options_.folder},
                                      {"address", address_},
                                      {kBracePlaceholder, "{"}});
    };
    if (!json.at("argv").is_array() || json.at("argv").empty()) throw EnvError("the command of a rank is empty");
    for (const Json& word : json.at("argv")) {
      if (word == "{trainctl}") {
        command.argv.insert(command.argv.end(), options_.self.begin(), options_.self.end());
      } else {
        command.argv.push_back(filled(word.get<std::string>()));
      }
    }
    for (const Json& variable : json.at("environment"))
      command.environment.emplace_back(variable.at(0).get<std::string>(), filled(variable.at(1).get<std::string>()));
    command.working_dir = filled(json.at("working_dir").get<std::string>());
    if (json.contains("script")) command.script = filled(json.at("script").get<std::string>());
    options_.share->complete(rank, command, store_->port(), store_token_);
    return command;
  }

  void rank_ended(int rank, const RankReport& report) {
    running_.erase(rank);
    report_changes();
    report_files(false);
    ended_.emplace_back(rank, report_json(report, wall_seconds()));
    if (!report.failed()) return report_saves();
    for (auto& [ended, text] : std::exchange(ended_, {})) send(Kind::ended, ended, 0, "", std::move(text));
  }

  // Messages to the launcher.

  void report_changes() {
    if (!ranks_) return;
    std::string changes = options_.share->changes();
    if (!changes.empty()) send(Kind::board, -1, 0, "", std::move(changes));
  }

  /// Images of saves are large, so no more are sent at a time than the launcher has confirmed. For the launcher, a rank
  /// that ended normally has ended once its last state has arrived.
  void report_saves() {
    while (!is_full()) {
      auto message = options_.share->next_save_message();
      if (!message) {
        for (auto& [rank, report] : std::exchange(ended_, {})) send(Kind::ended, rank, 0, "", std::move(report));
        return;
      }
      if (message->rank < 0) report_files(false);  // the launcher must have the metrics of all steps in a checkpoint
      send(Kind::save, message->rank, message->number, std::move(message->name), std::move(message->text));
    }
  }

  /// Returns whether everything was sent.
  bool report_files(bool waits) {
    if (!files_) return true;
    return files_->look(
        [this](const std::string& path, int64_t offset, std::string_view bytes) {
          if (path.size() <= kMaxNameBytes) send(Kind::file, -1, offset, path, std::string(bytes));
        },
        [&] { return waits && is_full(); });
  }

  void report_frozen() {
    for (auto& [rank, frozen] : running_) {
      const bool is_frozen = ranks_->is_frozen(rank);
      if (std::exchange(frozen, is_frozen) != is_frozen) send(Kind::frozen, rank, is_frozen ? 1 : 0);
    }
  }

  void tick() {
    if (ranks_) ranks_->look();
    report_changes();
    report_saves();
    if (is_due(files_reported_, kFilesSeconds)) report_files(true);
    if (is_due(frozen_reported_, kFrozenSeconds)) report_frozen();
    if (connection_.is_open() && is_due(alive_reported_, kAliveSeconds)) connection_.confirm();
    connection_.flush();
    if (connection_.silent_seconds() > reconnect_seconds_) return leave();
    if (stage_ == Stage::leaving && (connection_.is_done() || now() - leaving_since_ > kFarewellSeconds))
      return leave();
    timer_.expires_after(kTick);
    timer_.async_wait([this](const boost::system::error_code& error) {
      if (!error) tick();
    });
  }

  /// Ends the ranks, sends the rest, and deletes everything of the run on this host.
  void begin_farewell() {
    if (stage_ == Stage::leaving) return;
    stage_ = Stage::leaving;
    leaving_since_ = now();
    ranks_.reset();
    runner_.reset();
    running_.clear();  // they have ended with their runner
    report_files(false);
  }

  void leave() { left_ = true; }

  AgentOptions options_;
  asio::io_context loop_;
  AgentConnection connection_;
  asio::steady_timer timer_;
  asio::signal_set terms_;
  const Clock::time_point start_ = Clock::now();

  double reconnect_seconds_ = 15;
  double alive_reported_ = 0, files_reported_ = 0, frozen_reported_ = 0, leaving_since_ = 0;
  Stage stage_ = Stage::idle;
  bool left_ = false;

  uint32_t attempt_ = 0;
  std::set<int> started_;  ///< ranks of this attempt
  std::optional<KeptCopies> copies_;
  LaunchObserver unobserved_;
  std::optional<Launch> launch_;
  std::unique_ptr<PosixProcessRunner> runner_;
  std::unique_ptr<LocalRanks> ranks_;
  std::optional<FileWatch> files_;
  std::map<int, ProcessCommand> commands_;
  std::vector<std::pair<int, std::string>> ended_;  ///< ranks whose end has not been reported yet, and their reports
  std::map<int, bool> running_;                     ///< ranks, and whether their process is stopped
  std::map<uint32_t, std::pair<int, std::string>> streams_;
  std::unique_ptr<StoreServer> store_;
  std::string store_token_, address_;
  std::unique_ptr<ReservedPort> port_;
  std::optional<LinkListener> link_listener_;
};

}  // namespace

int serve_as_agent(AgentOptions options) { return Agent(std::move(options)).run(); }

}  // namespace trainctl::hosts
