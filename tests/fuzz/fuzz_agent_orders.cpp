// libFuzzer target: the input is decoded to a sequence of valid frames for a real agent: orders with right and wrong
// contents, and confirmations at different times. The agent starts real processes (/bin/true, sleep), and must end on
// request and delete its folder.
//
//   sequence := order*        order := kind attempt rank number name text confirms      one byte each: an index
//   text 255 := the next byte gives a length, and that many bytes follow
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "launcher/hosts/agent.h"
#include "launcher/hosts/frame.h"
#include "tests/fuzz/interrupted_calls.h"

namespace {

using namespace trainctl;
using namespace trainctl::hosts;

constexpr std::string_view kKinds = "PPPSSSKHZLQXWCYVERUBNDFGOIT";
constexpr size_t kMostOrders = 32;

/// Accepts every message of a workload and sends none.
class NoShare : public HostShare {
 public:
  bool prepare(const nlohmann::json& what, const std::vector<int>&, const std::string&) override {
    if (what.is_number()) throw std::runtime_error("no workload");
    return what.is_boolean();
  }
  void complete(int, ProcessCommand&, uint16_t, const std::string&) override {}
  std::string changes() override { return ""; }
  void apply(std::string_view) override {}
  uint64_t hold() override { return 1; }
  void stop_after(uint64_t) override {}
  void release() override {}
  void ended(int, bool) override {}
  std::optional<SaveMessage> next_save_message() override { return std::nullopt; }
  void take(const SaveMessage& word) override {
    if (word.number < 0) throw std::runtime_error("no word");
  }
};

std::string prepare_text(const char* key, const nlohmann::json& value) {
  nlohmann::json json = {{"host", "h"},
                         {"run", 1},
                         {"places", {{0, 0}, {1, 1}}},
                         {"reconnect", 15},
                         {"grace", 1},
                         {"interface", "lo"},
                         {"bind", 0},
                         {"explain", false},
                         {"hold_port", false},
                         {"files", nlohmann::json::object()},
                         {"copies", nlohmann::json::array()},
                         {"program_folder", ""},
                         {"workload", nullptr}};
  if (key != nullptr) json[key] = value;
  return json.dump();
}

std::string command_text(const std::vector<std::string>& words, const char* folder = "/") {
  return nlohmann::json{{"argv", words}, {"environment", nlohmann::json::array()}, {"working_dir", folder}}.dump();
}

const std::vector<std::string>& texts() {
  using Json = nlohmann::json;
  static const std::vector<std::string> all = {prepare_text(nullptr, nullptr),
                                               prepare_text("workload", 1),
                                               prepare_text("workload", true),
                                               prepare_text("places", Json::array({{0, 5}})),
                                               prepare_text("places", Json::array()),
                                               prepare_text("places", Json::array({{1, 0}})),
                                               prepare_text("files", {{"../x", "a"}}),
                                               prepare_text("files", {{"job.yaml", "a"}}),
                                               prepare_text("copies", Json::array({{"/x", std::string(64, 'f')}})),
                                               prepare_text("bind", 9),
                                               prepare_text("reconnect", -1),
                                               prepare_text("grace", 1e300),
                                               prepare_text("program_folder", "../.."),
                                               prepare_text("hold_port", true),
                                               command_text({"sleep", "600"}),
                                               command_text({"/bin/true"}),
                                               command_text({"sh", "-c", "echo x; exit 3"}),
                                               command_text({}),
                                               command_text({"/no/program"}),
                                               command_text({"true"}, "/no/folder"),
                                               "",
                                               "{}",
                                               "[]",
                                               std::string(5000, 'x')};
  return all;
}

const std::vector<std::string>& names() {
  static const std::vector<std::string> all = {
      "", "x", "..", "a/b", "../x", std::string(64, 'f'), std::string(64, 'f') + "/a", "stdout"};
  return all;
}

constexpr std::array<int64_t, 8> kNumbers = {0, 1, -1, 9, 15, 19, INT64_MAX, INT64_MIN};
constexpr std::array<int32_t, 6> kRanks = {0, 1, -1, 5, INT32_MAX, INT32_MIN};

class Bytes {
 public:
  explicit Bytes(std::string_view left) : left_(left) {}
  bool empty() const { return left_.empty(); }
  uint8_t next() {
    if (left_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(left_.front());
    left_.remove_prefix(1);
    return byte;
  }
  std::string take(size_t count) {
    const std::string taken(left_.substr(0, count));
    left_.remove_prefix(taken.size());
    return taken;
  }

 private:
  std::string_view left_;
};

/// The launcher's end of a connection.
class Launcher {
 public:
  explicit Launcher(const sockaddr_un& name, socklen_t size) : fd_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    connect_or_abort(fd_, reinterpret_cast<const sockaddr*>(&name), size);
    write(encode(Join{kVersion, 1, 0, std::string(64, 't')}));
  }
  ~Launcher() { close(fd_); }

  void send(Message message) { write(encode(Numbered{++sent_, std::move(message)})); }
  void confirm() { write(encode(Alive{received_})); }
  /// Returns whether the agent has the connection still.
  bool read(bool waits) {
    std::array<char, 1 << 16> bytes{};
    const ssize_t got = uninterrupted([&] { return recv(fd_, bytes.data(), bytes.size(), waits ? 0 : MSG_DONTWAIT); });
    if (got > 0) reader_.feed({bytes.data(), static_cast<size_t>(got)});
    while (const auto frame = reader_.next())
      if (const auto* numbered = std::get_if<Numbered>(&*frame)) received_ = numbered->number;
    return got > 0 || (!waits && got < 0);
  }

 private:
  void write(std::string_view bytes) const {
    uninterrupted([&] { return ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); });
  }

  int fd_;
  uint64_t sent_ = 0, received_ = 0;
  FrameReader reader_;
};

void play(Launcher& launcher, Bytes bytes) {
  for (size_t order = 0; order < kMostOrders && !bytes.empty(); ++order) {
    Message message;
    message.kind = static_cast<Message::Kind>(kKinds[bytes.next() % kKinds.size()]);
    message.attempt = bytes.next() % 4;
    message.rank = kRanks[bytes.next() % kRanks.size()];
    message.number = kNumbers[bytes.next() % kNumbers.size()];
    message.name = names()[bytes.next() % names().size()];
    const uint8_t text = bytes.next();
    message.text = text == 255 ? bytes.take(bytes.next()) : texts()[text % texts().size()];
    launcher.send(std::move(message));
    const uint8_t confirms = bytes.next();
    if ((confirms & 1) != 0) launcher.read(false);
    if ((confirms & 2) != 0) launcher.confirm();
    if ((confirms & 12) == 12) usleep(30'000);  // longer than a tick of the agent
  }
  Message end;
  end.kind = Message::Kind::end;
  launcher.send(std::move(end));
  while (launcher.read(true)) launcher.confirm();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string folder = "/tmp/fuzz_agent.XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) std::abort();
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::strcpy(name.sun_path, (folder + "/socket").c_str());
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(listener, reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0 || listen(listener, 8) != 0)
    std::abort();
  std::thread launcher([&] {
    Launcher here(name, sizeof name);
    play(here, Bytes({reinterpret_cast<const char*>(data), size}));
  });
  AgentOptions options;
  options.folder = folder;
  options.self = {"/bin/true"};
  options.listener = listener;
  options.share = std::make_unique<NoShare>();
  const int code = serve_as_agent(std::move(options));
  launcher.join();
  if (code != 0 || std::filesystem::exists(folder)) std::abort();
  return 0;
}
