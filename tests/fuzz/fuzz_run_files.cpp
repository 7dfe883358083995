// libFuzzer target: any bytes are read as a file of a run's folder or of the registry, as a shard of a printed tensor,
// or as a calibrated machine. The reader returns a value or the error that it documents. A value is written and read
// again as the same text. The first byte of the input selects the kind of file.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "cli/render/metric_rows.h"
#include "cli/report/metrics_data.h"
#include "cli/run/launch/metrics_file.h"
#include "cli/run/launch/run_end.h"
#include "cli/run/worker/metrics_log.h"
#include "cli/text/start_up_report.h"
#include "engine/base/error.h"
#include "engine/machine/machine_text.h"
#include "engine/train/files/npy_file.h"
#include "launcher/live_status.h"
#include "launcher/rank_error.h"
#include "launcher/run_directory.h"
#include "launcher/torch_error.h"

namespace {

using namespace trainctl;

void require(bool holds) {
  if (!holds) std::abort();
}

/// A folder per process, in memory if possible, with run 1 of one rank.
struct RunFolder {
  RunFolder() {
    const bool in_memory = std::filesystem::is_directory("/dev/shm");
    path = (in_memory ? "/dev/shm" : std::filesystem::temp_directory_path().string()) + "/fuzz-run-XXXXXX";
    if (mkdtemp(path.data()) == nullptr) std::abort();
    RunDirectory::create(path, 1);
  }
  ~RunFolder() { std::filesystem::remove_all(path); }
  std::string path;
};

const std::string& folder() {
  static const RunFolder one;
  return one.path;
}

void put(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

void read_status(std::string_view text) {
  const auto status = parse_live_status(text);
  if (!status) return;
  const std::string again = to_json(*status);
  require(to_json(*parse_live_status(again)) == again);
}

void read_errors(std::string_view text) {
  if (const auto error = parse_rank_error(text)) {
    const std::string again = to_json(*error);
    require(to_json(*parse_rank_error(again)) == again);
  }
  if (const auto error = parse_torch_error(text, 1e9)) (void)to_json(*error);
}

void read_machine(std::string_view text) {
  try {
    const std::string again = to_json(machine_of_json(std::string(text), "fuzz"));
    require(to_json(machine_of_json(again, "again")) == again);
  } catch (const EnvError&) {
    // The text is not a machine.
  }
}

void read_metrics(std::string_view text) {
  const RunDirectory directory(folder(), 1);
  put(directory.file(kMetricsFile), text);
  put(directory.rank_file(0, kMetricsFile), text.substr(text.size() / 2));
  try {
    (void)metrics_data(directory.file(kMetricsFile)).dump();
  } catch (const SpecError&) {
    // A line is no JSON object.
  }
  try {
    for (const RowKind kind : {RowKind::steps, RowKind::epochs, RowKind::validations}) {
      MetricRows rows = read_metric_rows(directory, kind);
      for (const auto& row : rows.rows) require(row.size() == rows.columns.size());
      rows.keep_last(1);
      (void)rows.csv();
    }
  } catch (const SpecError&) {
    // A line is no JSON object.
  }
  gather_metrics(directory);
  keep_metrics(directory, 5);
}

void read_outcome(std::string_view text) {
  const RunDirectory directory(folder(), 1);
  put(directory.file("outcome.json"), text);
  (void)state_of(directory);
  put(directory.file("error.json"), text.substr(text.size() / 2));
  if (const auto end = read_run_end(directory)) require(!end->ending.empty());
}

void read_start_up(std::string_view text) {
  const RunDirectory directory(folder(), 1);
  put(directory.rank_file(0, "start_up.json"), text);
  (void)start_up_line(read_start_ups(directory, 1), 0);
}

/// The text is a file's name, NUL, and what is in the file: a part of a printed tensor.
void join_parts(std::string_view text) {
  const std::string tensors = folder() + "/tensors";
  const size_t end = text.find('\0');
  const std::string name(text.substr(0, end));
  if (end == std::string_view::npos || name.size() > 200 || name.find('/') != std::string::npos) return;
  std::filesystem::create_directory(tensors);
  put(tensors + "/" + name, text.substr(end + 1));
  try {
    join_npy_shards(tensors);
  } catch (const EnvError&) {
    // The whole tensor is too large for a file.
  }
  std::filesystem::remove_all(tensors);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 7) {
    case 0:
      read_status(text);
      break;
    case 1:
      read_errors(text);
      break;
    case 2:
      read_machine(text);
      break;
    case 3:
      read_metrics(text);
      break;
    case 4:
      read_start_up(text);
      break;
    case 5:
      join_parts(text);
      break;
    default:
      read_outcome(text);
  }
  return 0;
}
