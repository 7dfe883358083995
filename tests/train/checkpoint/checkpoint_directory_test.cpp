// Tests of publishing checkpoints, of stragglers, crashes and losses of power, and of retention.
#include "engine/train/checkpoint/checkpoint_directory.h"

#include <doctest/doctest.h>
#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "engine/base/error.h"
#include "engine/train/checkpoint/checkpoint_names.h"
#include "engine/train/checkpoint/verify_checkpoint.h"
#include "tests/train/checkpoint/faulty_disk.h"
#include "tests/train/checkpoint/sample.h"
#include "tests/train/scratch_folder.h"

using namespace trainctl;
namespace fs = std::filesystem;

namespace {

constexpr CommitBy kBoth[] = {CommitBy::rename, CommitBy::file};

std::string root(const ScratchFolder& scratch) { return scratch.path() + "/run/checkpoints"; }

std::string save(CheckpointDirectory& directory, int64_t step, int attempt, Disk& disk = real_disk()) {
  return save_sample(directory, two_small_tensors(), step, attempt, disk);
}

int64_t newest(const CheckpointDirectory& directory) {
  const auto entry = directory.newest_complete();
  return entry ? entry->step : -1;
}

std::vector<int64_t> complete_steps(const CheckpointDirectory& directory) {
  std::vector<int64_t> steps;
  for (const CheckpointEntry& entry : directory.list())
    if (entry.complete()) steps.push_back(entry.step);
  return steps;
}

void spoil(const std::string& path) { fs::resize_file(path, fs::file_size(path) - 1); }

/// Begins attempts, saves and deletes checkpoints. `announced` is the step of the last save that succeeded.
void work(CheckpointDirectory& directory, Disk& disk, int64_t& announced) {
  for (int64_t step = 10; step <= 40; step += 10) {
    const int attempt = step == 10 || step == 30 ? directory.claim_attempt() : step == 20 ? 1 : 2;
    save(directory, step, attempt, disk);
    announced = step;
    directory.retain(2);
  }
}

}  // namespace

TEST_CASE("a checkpoint is published under its step, with the job, and found") {
  for (const CommitBy commit_by : kBoth) {
    const ScratchFolder scratch;
    CheckpointDirectory directory(root(scratch), commit_by);
    CHECK(directory.list().empty());
    CHECK_FALSE(directory.newest_complete());
    const int attempt = directory.claim_attempt();
    CHECK(attempt == 1);
    const std::string path = save(directory, 120, attempt);
    CHECK(fs::path(path).filename() == (commit_by == CommitBy::rename ? "step_00000120" : "step_00000120.attempt_1"));
    const auto found = directory.newest_complete();
    REQUIRE(found);
    CHECK(found->path == path);
    CHECK(found->manifest.samples == 3840);
    CHECK(verify_checkpoint(path).problems.empty());
    std::ifstream job(path + "/job.yaml");
    std::string line;
    std::getline(job, line);
    CHECK(line == "name: sample");
  }
}

TEST_CASE("names are read only as they are written") {
  CHECK(checkpoint_name(120) == "step_00000120");
  CHECK(checkpoint_name(1'234'567'890) == "step_1234567890");
  for (const char* name : {"step_00000120", ".step_00000120.attempt_3", "step_00000120.attempt_12", "step_1234567890"})
    CHECK(parse_checkpoint_name(name)->text() == name);
  for (const char* name : {"step_120", "step_", ".step_00000120", "step_00000120.attempt_", "step_00000120.attempt_0",
                           "step_00000120.attempt_03", "step_00000120.bak", "step_-0000120",
                           "step_99999999999999999999", "steps", "", "step_00000120/"})
    CHECK_FALSE(parse_checkpoint_name(name));
}

TEST_CASE("until a checkpoint is published it cannot be used, and it is listed with the reason") {
  for (const CommitBy commit_by : kBoth) {
    const ScratchFolder scratch;
    CheckpointDirectory directory(root(scratch), commit_by);
    const int attempt = directory.claim_attempt();
    const Manifest manifest = write_sample_files(directory.begin(8, attempt), two_small_tensors(), 8, attempt);
    CHECK_FALSE(directory.newest_complete());
    const auto entries = directory.list();
    REQUIRE(entries.size() == 1);
    CHECK(entries[0].being_written);
    CHECK(entries[0].problem == "attempt 1 is writing it, or was interrupted while writing it");
    directory.commit(manifest, "job");
    CHECK(newest(directory) == 8);
  }
}

TEST_CASE("an incomplete or damaged checkpoint is passed over with its reason, and the one before it is taken") {
  const ScratchFolder scratch;
  CheckpointDirectory directory(root(scratch));
  const int attempt = directory.claim_attempt();
  for (const int64_t step : {1, 2, 3, 4, 5}) save(directory, step, attempt);
  spoil(root(scratch) + "/step_00000005/checkpoint.json");
  fs::remove(root(scratch) + "/step_00000004/rank.0001.safetensors");
  spoil(root(scratch) + "/step_00000003/rank.0000.safetensors");
  fs::rename(root(scratch) + "/step_00000002", root(scratch) + "/step_00000012");
  std::vector<CheckpointEntry> passed_over;
  CHECK(directory.newest_complete(&passed_over)->step == 1);
  REQUIRE(passed_over.size() == 4);
  const auto has = [&](size_t i, const char* words) { return passed_over[i].problem.find(words) != std::string::npos; };
  CHECK(has(0, "checkpoint.json: describes step 2, attempt 1, so it belongs to another directory"));
  CHECK(has(1, "step_00000005/checkpoint.json: is damaged or truncated"));
  CHECK(has(2, "step_00000004/rank.0001.safetensors: is missing"));
  CHECK(has(3, "step_00000003/rank.0000.safetensors: has "));
}

TEST_CASE("each attempt gets a unique number, even if several processes claim one") {
  const ScratchFolder scratch;
  for (int expected = 1; expected <= 12; ++expected)
    CHECK(CheckpointDirectory(root(scratch), kBoth[expected % 2]).claim_attempt() == expected);
}

TEST_CASE("after a later attempt began, an older one neither begins nor publishes") {
  for (const CommitBy commit_by : kBoth) {
    const ScratchFolder scratch;
    CheckpointDirectory old(root(scratch), commit_by), later(root(scratch), commit_by);
    CHECK(old.claim_attempt() == 1);
    save(old, 10, 1);
    const Manifest manifest = write_sample_files(old.begin(20, 1), two_small_tensors(), 20, 1);
    CHECK(later.claim_attempt() == 2);
    CHECK(newest(later) == 10);
    CHECK_THROWS_AS(old.commit(manifest, "job"), EnvError);
    CHECK_THROWS_WITH_AS(old.begin(30, 1),
                         doctest::Contains("attempt 1 can no longer write checkpoints, because attempt 2"), EnvError);
    CHECK(complete_steps(later) == std::vector<int64_t>{10});
    save(later, 15, 2);
    CHECK(newest(later) == 15);
  }
}

TEST_CASE("of one step the latest attempt counts") {
  for (const CommitBy commit_by : kBoth) {
    const ScratchFolder scratch;
    CheckpointDirectory directory(root(scratch), commit_by);
    save(directory, 10, directory.claim_attempt());
    save(directory, 10, directory.claim_attempt());
    const auto found = directory.newest_complete();
    CHECK(found->attempt == 2);
    CHECK(found->name == "step_00000010.attempt_2");
    CHECK(directory.retain(5).size() == 1);
    CHECK(directory.newest_complete()->attempt == 2);
    CHECK_THROWS_WITH_AS(directory.begin(10, 2), doctest::Contains("attempt 2 has already published this step"),
                         EnvError);
  }
}

TEST_CASE("a late writer publishes before a later attempt chooses, or not at all, at whatever call they interleave") {
  for (const CommitBy commit_by : kBoth) {
    int published = 0, refused = 0;
    for (int meeting = 0;; ++meeting) {
      const ScratchFolder scratch;
      FaultyDisk disk;
      FaultyDisk other_disk;
      CheckpointDirectory straggler(root(scratch), commit_by, disk), later(root(scratch), commit_by, other_disk);
      straggler.claim_attempt();
      save(straggler, 10, 1, disk);
      const int first = disk.calls();
      std::optional<int64_t> chosen;
      disk.before_each = [&] {
        if (disk.calls() - first != meeting + 1) return;
        later.claim_attempt();
        chosen = newest(later);
      };
      try {
        save(straggler, 20, 1, disk);
      } catch (const EnvError&) {
        ++refused;
      }
      if (!chosen) break;
      published += *chosen == 20;
      CAPTURE(meeting);
      CHECK(newest(later) == *chosen);
      save(later, 30, 2, other_disk);
      CHECK(newest(later) == 30);
    }
    CHECK(refused > 10);
    CHECK(published > 0);
  }
}

TEST_CASE("whatever call fails, no step is published in part, and later saves work") {
  for (const CommitBy commit_by : kBoth)
    for (const int error : {ENOSPC, EIO}) {
      int failures = 0;
      for (int call = 0;; ++call) {
        const ScratchFolder scratch;
        FaultyDisk disk;
        CheckpointDirectory directory(root(scratch), commit_by, disk);
        const int attempt = directory.claim_attempt();
        save(directory, 10, attempt, disk);
        disk.fails_at = disk.calls() + call;
        disk.error = error;
        bool threw = false;
        try {
          save(directory, 20, attempt, disk);
        } catch (const EnvError& e) {
          threw = true;
          CAPTURE(e.what());
          CAPTURE(disk.failed());
          CHECK(std::string(e.what()).find(std::strerror(error)) != std::string::npos);
        }
        if (disk.calls() <= disk.fails_at) break;
        ++failures;
        CAPTURE(disk.failed());
        CHECK(threw);
        // Only the last sync may fail with everything in place.
        const bool at_last_sync = disk.failed().starts_with("fsync") || disk.failed().starts_with("open");
        if (newest(directory) != 10) CHECK(at_last_sync);
        CHECK(verify_checkpoint(directory.newest_complete()->path).problems.empty());
        directory.abandon(20, attempt);
        save(directory, 30, attempt, disk);
        CHECK(newest(directory) == 30);
      }
      CHECK(failures > 20);
    }
}

TEST_CASE(
    "whenever the process dies or power is lost, the newest complete checkpoint is at least the last announced one") {
  std::mt19937 random(11);
  for (const CommitBy commit_by : kBoth) {
    int deaths = 0;
    for (bool died = true; died; ++deaths) {
      const ScratchFolder scratch;
      FaultyDisk disk;
      disk.dies_at = deaths;
      CheckpointDirectory directory(scratch.path() + "/a/checkpoints", commit_by, disk);
      fs::create_directory(scratch.path() + "/a");
      int64_t announced = -1;
      try {
        work(directory, disk, announced);
        died = false;
      } catch (const Death&) {
      }
      for (int state = 0; state < 4; ++state) {
        std::string folder = scratch.path() + "/a";
        if (state < 3) {
          folder = scratch.path() + "/" + std::to_string(state);
          fs::create_directory(folder);
          disk.lose_power(scratch.path() + "/a", folder, random);
        }
        CAPTURE(deaths);
        CAPTURE(state);
        FaultyDisk healthy;
        CheckpointDirectory left(folder + "/checkpoints", commit_by, healthy);
        const auto found = left.newest_complete();
        REQUIRE((found ? found->step : -1) >= announced);
        if (found) REQUIRE(verify_checkpoint(found->path).problems.empty());
        const int64_t next = 50;
        save(left, next, left.claim_attempt(), healthy);
        REQUIRE(newest(left) == next);
        for (const CheckpointEntry& entry : left.list()) REQUIRE_FALSE(entry.being_written);
      }
    }
    CHECK(deaths > 100);
  }
}

TEST_CASE("retention keeps the newest ones, those that are named, and the last verified one") {
  const ScratchFolder scratch;
  CheckpointDirectory directory(root(scratch));
  const int attempt = directory.claim_attempt();
  for (const int64_t step : {1, 2, 3, 4, 5, 6}) save(directory, step, attempt);
  CHECK(record_verified(root(scratch) + "/step_00000001"));
  CHECK(record_verified(root(scratch) + "/step_00000002"));
  CHECK(directory.retain(2, {4}).size() == 2);
  CHECK(complete_steps(directory) == std::vector<int64_t>{6, 5, 4, 2});
  CHECK(record_verified(root(scratch) + "/step_00000006"));
  directory.retain(1);
  CHECK(complete_steps(directory) == std::vector<int64_t>{6});
  directory.retain(0);
  CHECK(complete_steps(directory) == std::vector<int64_t>{6});
}

TEST_CASE("retention deletes remains that nobody writes any more, and neither damaged ones nor those being written") {
  const ScratchFolder scratch;
  CheckpointDirectory directory(root(scratch));
  directory.claim_attempt();
  for (const int64_t step : {1, 2, 3}) save(directory, step, 1);
  fs::remove(root(scratch) + "/step_00000001/checkpoint.json");
  spoil(root(scratch) + "/step_00000002/job.yaml");
  directory.begin(4, 1);
  CHECK(directory.retain(3) == std::vector<std::string>{root(scratch) + "/step_00000001"});
  CHECK(directory.list().size() == 3);
}

TEST_CASE("files of other programs are left alone") {
  const ScratchFolder scratch;
  CheckpointDirectory directory(root(scratch));
  directory.claim_attempt();
  for (const char* name : {"notes.txt", ".step_1", "step_120"}) fs::create_directory(root(scratch) + "/" + name);
  save(directory, 1, 1);
  save(directory, 2, 1);
  directory.claim_attempt();
  directory.retain(1);
  for (const char* name : {"notes.txt", ".step_1", "step_120"}) CHECK(fs::exists(root(scratch) + "/" + name));
  CHECK(complete_steps(directory) == std::vector<int64_t>{2});
}

TEST_CASE("the checkpoint published last is found even while the listing lacks it") {
  const ScratchFolder scratch;
  CheckpointDirectory directory(root(scratch));
  const int attempt = directory.claim_attempt();
  save(directory, 1, attempt);
  save(directory, 2, attempt);
  std::ifstream hint(root(scratch) + "/.newest");
  std::string first, second;
  hint >> first >> second;
  CHECK(first == "step_00000002");
  CHECK(second == "step_00000001");
  CHECK(directory.list().size() == 2);  // not twice
  std::ofstream(root(scratch) + "/.newest") << "../../etc\nstep_00000099\nstep_000";
  CHECK(directory.list().size() == 2);
}

TEST_CASE("a directory that cannot be listed or written is an error with path and reason") {
  const ScratchFolder scratch;
  scratch.write("file", {1});
  CheckpointDirectory directory(scratch.path() + "/file");
  CHECK_THROWS_WITH_AS(directory.list(), doctest::Contains("/file: cannot be listed: Not a directory"), EnvError);
  CHECK_THROWS_AS(directory.claim_attempt(), EnvError);
  CHECK(commit_for(scratch.path() + "/not/yet/there") == CommitBy::rename);
}

namespace {

const CheckpointOwner kAlice{"a11ce", "alice"}, kBob{"b0b", "bob"};

/// Saves a checkpoint that belongs to the directory's owner.
std::string save_owned(CheckpointDirectory& directory, int64_t step, int attempt) {
  Manifest manifest = write_sample_files(directory.begin(step, attempt), two_small_tensors(), step, attempt);
  manifest.lineage = directory.owner()->lineage;
  manifest.name = directory.owner()->name;
  return directory.commit(manifest, "job");
}

}  // namespace

TEST_CASE("retention deletes only checkpoints of its own lineage") {
  const ScratchFolder scratch;
  CheckpointDirectory alices(root(scratch)), bobs(root(scratch));
  const int first = alices.claim_attempt(kAlice);
  for (const int64_t step : {20, 40}) save_owned(alices, step, first);
  const int second = bobs.claim_attempt(kBob);
  for (const int64_t step : {10, 20, 30}) save_owned(bobs, step, second);
  CHECK(bobs.retain(1).size() == 2);
  CHECK(complete_steps(bobs) == std::vector<int64_t>{30, 40, 20});
}

TEST_CASE("checkpoints without a lineage belong to the job of their name") {
  Manifest old;
  old.name = "alice";
  CHECK(CheckpointOwner{"", "alice"}.owns(old));
  CHECK_FALSE(CheckpointOwner{"", "bob"}.owns(old));
  CHECK_FALSE(kAlice.owns(old));
}

TEST_CASE("a new run is refused where another lineage has published, and changes nothing") {
  for (const CommitBy commit_by : kBoth) {
    const ScratchFolder scratch;
    {
      CheckpointDirectory alices(root(scratch), commit_by);
      save_owned(alices, 60, alices.claim_attempt(kAlice));
    }
    CheckpointDirectory bobs(root(scratch), commit_by);
    CHECK_THROWS_WITH_AS(bobs.claim_attempt(kBob, "bob", true),
                         doctest::Contains("it contains step 60 of the job 'alice', run "), Occupied);
    CheckpointDirectory again(root(scratch), commit_by);
    CHECK(again.claim_attempt(kAlice) == 2);
    CHECK(newest(again) == 60);
  }
}

TEST_CASE("a newcomer is refused while another launcher saves, before its first checkpoint too, and not afterwards") {
  const ScratchFolder scratch;
  {
    CheckpointDirectory alices(root(scratch));
    alices.claim_attempt(kAlice, "run 3 of the job 'alice'", true);
    const CheckpointDirectory copy = alices;  // as the process that writes has one
    CHECK_THROWS_WITH_AS(CheckpointDirectory(root(scratch)).claim_attempt(kBob, "bob", true),
                         doctest::Contains("run 3 of the job 'alice' is saving there now"), Occupied);
    CHECK(save_owned(alices, 10, 1) != "");  // it was not superseded
    fs::remove_all(root(scratch) + "/step_00000010");
  }
  CHECK(CheckpointDirectory(root(scratch)).claim_attempt(kBob, "bob", true) == 2);
}

TEST_CASE("a launcher has no file of its checkpoints open for writing between saves, so the disk can be remounted") {
  const ScratchFolder scratch;
  CheckpointDirectory directory(root(scratch));
  save_owned(directory, 10, directory.claim_attempt(kAlice, "alice", true));
  int open_files = 0;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code closed;  // the iterator's own
    if (fs::read_symlink(entry.path(), closed).string().find(scratch.path()) != 0) continue;
    ++open_files;
    CHECK((fcntl(std::stoi(entry.path().filename()), F_GETFL) & O_ACCMODE) == O_RDONLY);
  }
  CHECK(open_files == 1);  // the lock
}

TEST_CASE("neither a full disk nor a crash leaves a partial .newest") {
  const ScratchFolder scratch;
  FaultyDisk disk;
  CheckpointDirectory directory(root(scratch), CommitBy::rename, disk);
  const int attempt = directory.claim_attempt();
  save(directory, 10, attempt, disk);
  int failures = 0;
  for (int call = 0; failures == call; ++call) {
    disk.fails_at = disk.calls() + call;
    disk.error = ENOSPC;
    try {
      save(directory, 20 + call, attempt, disk);
    } catch (const EnvError&) {
      ++failures;
    }
    CHECK_FALSE(fs::exists(root(scratch) + "/.newest.part"));
  }
  CHECK(failures > 10);
  std::ofstream(root(scratch) + "/.newest.part") << "step";
  disk.fails_at = -1;
  directory.claim_attempt();
  CHECK_FALSE(fs::exists(root(scratch) + "/.newest.part"));
}

TEST_CASE("a checkpoint counts as saved only once its name has been synced") {
  class Unsyncable : public Disk {
   public:
    bool fails = false;
    int fsync(int fd) override {
      char path[64];
      std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
      errno = EIO;
      return fails && fs::read_symlink(path).filename() == "checkpoints" ? -1 : Disk::fsync(fd);
    }
  } disk;
  const ScratchFolder scratch;
  CheckpointDirectory directory(root(scratch), CommitBy::rename, disk);
  const int attempt = directory.claim_attempt();
  disk.fails = true;
  CHECK_THROWS_WITH_AS(save(directory, 10, attempt, disk), doctest::Contains("cannot be synced"), EnvError);
  CHECK_THROWS_WITH_AS(save(directory, 10, attempt, disk), doctest::Contains("cannot be synced"), EnvError);
  disk.fails = false;
  CHECK_THROWS_AS(save(directory, 10, attempt, disk), AlreadyPublished);
}
