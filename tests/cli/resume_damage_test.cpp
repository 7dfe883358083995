// Tests which checkpoint `run --resume` resumes from if bytes have changed on the disk.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "cli/run/saves/checkpoints.h"
#include "engine/base/error.h"
#include "engine/spec/parse.h"
#include "engine/train/checkpoint/checkpoint_directory.h"
#include "engine/train/checkpoint/verify_checkpoint.h"
#include "engine/train/files/input_file.h"
#include "tests/cli/command.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;
namespace fs = std::filesystem;

namespace {

/// A checkpoint of four ranks with an integrated file after step 11, and one of one rank that states step 7.
struct TwoCheckpoints {
  Scratch scratch;
  const std::string first = scratch.path() + "/step_00000007", last = scratch.path() + "/step_00000011";
  JobSpec spec;

  TwoCheckpoints() {
    const std::string golden = TRAINCTL_SOURCE_DIR "/tests/checkpoint_files/format_1/";
    fs::copy(golden + "one_rank/step_00000011", first);
    fs::copy(golden + "four_ranks/step_00000011", last);
    Manifest manifest = read_manifest(first);
    manifest.step = 7;
    std::ofstream(first + "/checkpoint.json") << to_json(manifest);
    REQUIRE(verify_checkpoint(first).problems.empty());
    spec = load_job(last + "/job.yaml");
    spec.train.checkpoint->dir = scratch.path();
  }

  std::string resumed(std::vector<std::string>& notices) const { return find_resume_point(spec, {}, notices).path; }
};

/// For every nth byte of the file: changes one of its bits, calls check(byte), and restores the byte.
template <class Check>
int64_t with_bytes_flipped(const std::string& path, int64_t nth, const Check& check) {
  const std::string text = read_whole_file(path);
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  REQUIRE(fd >= 0);
  const auto count = static_cast<int64_t>(text.size());
  for (int64_t i = 0; i < count; i += nth) {
    const char sound = text[static_cast<size_t>(i)], flipped = static_cast<char>(sound ^ (1 << i % 8));
    REQUIRE(pwrite(fd, &flipped, 1, i) == 1);
    check(i);
    REQUIRE(pwrite(fd, &sound, 1, i) == 1);
  }
  close(fd);
  return count;
}

}  // namespace

TEST_CASE("a checkpoint with a flipped byte is named with the damaged file, and a run resumes from the previous one") {
  // Because seven is odd, each bit of a byte gets its turn. With TRAINCTL_TEST_ALL_BYTES=1 every byte is changed, as in
  // soak.py.
  const int64_t nth = std::getenv("TRAINCTL_TEST_ALL_BYTES") != nullptr ? 1 : 7;
  const TwoCheckpoints saved;
  std::vector<std::string> none;
  REQUIRE(saved.resumed(none) == saved.last);
  REQUIRE(none.empty());
  int64_t bytes = 0;
  int files = 0;
  for (const auto& entry : fs::directory_iterator(saved.last)) {
    const std::string file = entry.path();
    CAPTURE(file);
    ++files;
    bytes += with_bytes_flipped(file, nth, [&](int64_t byte) {
      CAPTURE(byte);
      std::vector<std::string> notices;
      const std::string path = saved.resumed(notices);
      REQUIRE(path == saved.first);
      REQUIRE(notices.size() == 1);
      REQUIRE(contains(notices[0], saved.last + " was skipped: "));
      REQUIRE(contains(notices[0], entry.path().filename().string() + ": "));
    });
  }
  CHECK(files == 7);  // checkpoint.json, job.yaml, four ranks, the integrated file
  CHECK(bytes > 24'000);
  CHECK(saved.resumed(none) == saved.last);
}

TEST_CASE("a flipped byte in .newest, .verified or .attempts does not change which checkpoint is loaded") {
  const TwoCheckpoints saved;
  CheckpointDirectory directory(saved.scratch.path());
  directory.claim_attempt();
  REQUIRE(record_verified(saved.last));
  std::ofstream(saved.scratch.path() + "/.newest") << "step_00000011\nstep_00000007\n";
  for (const std::string& file : {saved.scratch.path() + "/.newest", saved.last + "/.verified"}) {
    CAPTURE(file);
    CHECK(with_bytes_flipped(file, 1, [&](int64_t byte) {
            CAPTURE(byte);
            std::vector<std::string> notices;
            REQUIRE(saved.resumed(notices) == saved.last);
            REQUIRE(notices.empty());
          }) > 20);
  }
  CHECK(fs::file_size(saved.scratch.path() + "/.attempts/1") == 0);  // a name without bytes
}
