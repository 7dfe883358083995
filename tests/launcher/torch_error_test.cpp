// Tests of the error files of PyTorch's @record.
#include "launcher/torch_error.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/launcher/scratch.h"

using namespace trainctl;

namespace {

/// The text of an error file in the format of ErrorHandler.record_exception.
std::string recorded(const std::string& message, const std::string& timestamp = "\"100\"") {
  return R"({"message": {"message": ")" + message + R"(", "extraInfo": {"py_callstack": "Traceback\n  f()\n", )" +
         R"("timestamp": )" + timestamp + "}}}";
}

}  // namespace

TEST_CASE("the error file of @record has a message, a stack and a time") {
  const auto error = parse_torch_error(recorded("ValueError: bad"), 100.25);
  REQUIRE(error.has_value());
  CHECK(error->kind == ErrorKind::program);
  CHECK(error->what == "ValueError: bad");
  CHECK(error->stack == "Traceback\n  f()\n");
  CHECK(error->time == 100.25);  // the timestamp has whole seconds only
}

TEST_CASE("the message of an error file may be plain text, with its time beside it") {
  const auto error = parse_torch_error(R"({"message": "out of luck", "timestamp": 70})", 100.25);
  REQUIRE(error.has_value());
  CHECK(error->what == "out of luck");
  CHECK(error->time == 70);
  CHECK(parse_torch_error(R"({"message": "no time"})", 100.25)->time == 100.25);
  CHECK(parse_torch_error(recorded("x", "\"soon\""), 100.25)->time == 100.25);
  CHECK(parse_torch_error(recorded("x", "1e400"), 100.25).value_or(RankError{.time = 100.25}).time == 100.25);
}

TEST_CASE("an error file that is broken is ignored") {
  for (const char* text : {"", "{", "[1]", "null", "7", "{}", R"({"message": 7})", R"({"message": {}})",
                           R"({"message": {"message": 7, "extraInfo": 3}})", R"({"message": [{}]})", "\xff\xfe"})
    CHECK_FALSE(parse_torch_error(text, 1).has_value());
  const auto half = parse_torch_error(R"({"message": {"message": "m", "extraInfo": {"timestamp": []}}})", 5);
  REQUIRE(half.has_value());
  CHECK(half->time == 5);
  CHECK_FALSE(parse_torch_error(std::string(1 << 20, '['), 1).has_value());
}

TEST_CASE("a long message and a long stack are cut") {
  const auto error = parse_torch_error(recorded(std::string(1 << 20, 'x')), 1);
  REQUIRE(error.has_value());
  CHECK(error->what.size() < 1 << 15);
}

TEST_CASE("an error file that is missing, huge, a folder or a pipe is ignored") {
  const Scratch scratch;
  const std::string path = scratch.path() + "/torch_error.json";
  CHECK_FALSE(read_torch_error(path).has_value());
  std::ofstream(path) << recorded("ValueError: bad");
  CHECK(read_torch_error(path)->what == "ValueError: bad");
  std::filesystem::resize_file(path, 100 << 20);
  CHECK_FALSE(read_torch_error(path).has_value());
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  CHECK_FALSE(read_torch_error(path).has_value());
  std::filesystem::remove(path);
  REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  CHECK_FALSE(read_torch_error(path).has_value());
}

TEST_CASE("messages about a lost connection or a timeout of Gloo, NCCL and c10d tell of another rank") {
  for (const char* text :
       {"RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:3",
        "[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 5000ms for recv operation to complete",
        "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error",
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)",
        "DistStoreError: wait timeout after 300000ms",
        "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms"})
    CHECK(mentions_peer(text));
  for (const char* text : {"ValueError: bad", "", "requests: Connection reset by peer", "loading gloo", "NCCL 2.19"})
    CHECK_FALSE(mentions_peer(text));
  CHECK(parse_torch_error(recorded("DistBackendError: NCCL timeout"), 1)->kind == ErrorKind::comm);
}
