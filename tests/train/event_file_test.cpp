// Tests of TensorBoard's event files, which a separate reader of the format reads back.
#include "engine/train/files/event_file.h"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "tests/train/event_reader.h"
#include "tests/train/scratch_folder.h"

using namespace trainctl;

namespace {

/// The events of the only file in `folder`.
std::vector<ReadEvent> events_in(const std::string& folder) {
  const std::filesystem::directory_iterator first(folder);
  REQUIRE(first != std::filesystem::directory_iterator());
  CHECK(first->path().filename().string().starts_with("events.out.tfevents."));
  std::stringstream text;
  text << std::ifstream(first->path(), std::ios::binary).rdbuf();
  return read_events(text.str());
}

}  // namespace

TEST_CASE("the sum of a record is CRC-32C, masked") {
  CHECK(event_reader::crc32c("123456789") == 0xE3069283U);  // 0xE3069283 is the check value that catalogues of CRCs
                                                            // give for CRC-32C.
  const std::vector<ReadEvent> none = read_events(event_record(""));
  CHECK(none.size() == 1);
  std::string record = event_record("\x10\x05");
  record[12] ^= 1;
  CHECK_THROWS_WITH(read_events(record), "the sum of an event is wrong");
}

TEST_CASE("an event file begins with its version, and holds scalars at their steps and texts") {
  const ScratchFolder folder;
  {
    EventFile file(folder.path());
    REQUIRE(file.is_open());
    file.write_text("job", "```yaml\nname: x\n```");
    file.write(1, {{"train/loss", 2.5}, {"train/accuracy", 0.125}});
    file.write(1'000'000'000'000, {{"train/loss", std::numeric_limits<double>::quiet_NaN()}});
    file.write(7, {});
  }
  const std::vector<ReadEvent> events = events_in(folder.path());
  REQUIRE(events.size() == 4);  // a write without values adds no event
  CHECK(events[0].file_version == "brain.Event:2");
  CHECK(events[1].texts.at("job") == "```yaml\nname: x\n```");
  CHECK(events[2].step == 1);
  CHECK(events[2].scalars == std::map<std::string, float>{{"train/loss", 2.5F}, {"train/accuracy", 0.125F}});
  CHECK(events[3].step == 1'000'000'000'000);
  CHECK(std::isnan(events[3].scalars.at("train/loss")));
  for (const ReadEvent& event : events) CHECK(event.wall_time > 1.7e9);
}

TEST_CASE("events are whole in the file before the next one is written") {
  const ScratchFolder folder;
  EventFile file(folder.path());
  for (int step = 1; step <= 3; ++step) {
    file.write(step, {{"train/loss", step}});
    CHECK(events_in(folder.path()).size() == static_cast<size_t>(step) + 1);
  }
}

TEST_CASE("events that cannot be written are kept until they can") {
  const ScratchFolder folder;
  const std::string later = folder.path() + "/later";
  EventFile file(later);
  file.write(1, {{"train/loss", 1}});
  std::filesystem::create_directory(later);
  file.write(2, {{"train/loss", 2}});
  const std::vector<ReadEvent> events = events_in(later);
  REQUIRE(events.size() == 3);
  CHECK(events[1].step == 1);
  CHECK(events[2].step == 2);
}

TEST_CASE("an event file holds histograms with their limits and counts") {
  const ScratchFolder folder;
  Histogram values;
  values.add(std::vector<float>{-1.5F, 0.25F, 0.25F, 3});
  EventFile(folder.path()).write_histograms(5, {{"weights/fc", values}, {"weights/none", {}}});
  const std::vector<ReadEvent> events = events_in(folder.path());
  REQUIRE(events.size() == 2);
  CHECK(events[1].step == 5);
  const ReadHistogram& h = events[1].histograms.at("weights/fc");
  CHECK(h.min == -1.5);
  CHECK(h.max == 3);
  CHECK(h.count == 4);
  CHECK(h.sum == 2);
  CHECK(h.sum_of_squares == 2.25 + 2 * 0.0625 + 9);
  REQUIRE(h.limits.size() == h.counts.size());
  for (size_t i = 0; i < h.counts.size(); ++i) {
    CHECK(h.counts[i] == static_cast<double>(values.buckets()[i].count));
    CHECK(h.limits[i] == values.buckets()[i].limit);
  }
  CHECK(events[1].histograms.at("weights/none").limits.empty());
}

TEST_CASE("an event file says with which settings a run began and how it ended") {
  const ScratchFolder folder;
  {
    EventFile file(folder.path());
    file.write_session_start({{"optimizer.learning_rate", 0.5}, {"optimizer.type", "sgd"}, {"shuffle", true}});
    file.write_session_end(true);
  }
  const std::vector<ReadEvent> events = events_in(folder.path());
  REQUIRE(events.size() == 3);
  std::map<std::string, std::string> settings;  // name -> google.protobuf.Value
  for (event_reader::Message data(events[1].hparams.at("_hparams_/session_start_info")); data.next();) {
    CHECK(data.number == 3);
    for (event_reader::Message start(data.bytes); start.next();) {
      if (start.number != 1) continue;
      std::string name, value;
      for (event_reader::Message entry(start.bytes); entry.next();) (entry.number == 1 ? name : value) = entry.bytes;
      settings[name] = value;
    }
  }
  using namespace std::string_literals;
  CHECK(settings == std::map<std::string, std::string>{{"optimizer.learning_rate", "\x11\0\0\0\0\0\0\xe0\x3f"s},
                                                       {"optimizer.type", "\x1a\x03sgd"},
                                                       {"shuffle", "\x20\x01"}});
  const std::string& end = events[2].hparams.at("_hparams_/session_end_info");
  CHECK(end.substr(2, 2) == "\x08\x01");  // status: success
}
