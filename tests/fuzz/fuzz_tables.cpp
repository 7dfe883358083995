// libFuzzer target: any bytes are read as a table all of whose rows can be decoded, or cause an EnvError or a SpecError
// (binary data in place of text). Formats with an index (MDS, Megatron) get an index and the file that it refers to.
// The first byte of the input selects the format, the next two give the size of the first file. The environment
// variable TRAINCTL_FUZZ_FORMAT selects the format by the name of its file instead.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/train/data/tables/table_file.h"

namespace {

using namespace trainctl;
namespace fs = std::filesystem;

struct FuzzedFormat {
  const char* first;
  const char* second;  ///< null: there is one file
};
constexpr FuzzedFormat kFormats[] = {
    {"t.jsonl", nullptr},       {"t.tfrecord", nullptr},
    {"data.mdb", nullptr},      {"t.jsonl.gz", nullptr},
    {"t.jsonl.zst", nullptr},   {"index.json", "shard.00000.mds"},
    {"t.idx", "t.bin"},         {"index.json", "shard.00000.mds.zstd"},
    {"t.tfrecord.gz", nullptr}, {"t.parquet", nullptr},
    {"t.arrow", nullptr},       {"t.h5", nullptr},
    {"t.feather", nullptr},     {"index.json", "shard.00000.mds.gz"},
    {"state.json", "t.arrow"},
};

/// The place of TRAINCTL_FUZZ_FORMAT, "t.h5" or "index.json+shard.00000.mds", in the list; -1: it is not set.
int wanted_format() {
  const char* name = std::getenv("TRAINCTL_FUZZ_FORMAT");
  if (name == nullptr) return -1;
  for (size_t f = 0; f < std::size(kFormats); ++f) {
    const std::string second = kFormats[f].second == nullptr ? "" : std::string("+") + kFormats[f].second;
    if (kFormats[f].first + second == name) return static_cast<int>(f);
  }
  abort();
}

const fs::path& folder() {
  static const fs::path path = [] {
    const fs::path base = fs::exists("/dev/shm") ? "/dev/shm" : fs::temp_directory_path();
    fs::path made = base / ("trainctl_fuzz_tables." + std::to_string(getpid()));
    fs::create_directory(made);
    static const fs::path to_remove = made;
    std::atexit([] {
      std::error_code ignored;
      fs::remove_all(to_remove, ignored);
    });
    return made;
  }();
  return path;
}

void write_file(const fs::path& path, const uint8_t* data, size_t size) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
}

/// A value has as many elements as its shape says.
void check_value(const TableColumn& column, const TableValue& value) {
  if (value.is_null || column.kind != ColumnKind::number) return;
  int64_t elements = 1;
  for (const int64_t dim : value.shape) elements *= dim;
  if (elements * byte_size(column.element) != static_cast<int64_t>(value.bytes.size())) abort();
}

void read_all(const std::string& path) {
  const std::unique_ptr<TableFile> table = open_table_file(path);
  std::vector<TableValue> value(1);
  constexpr int64_t kMostRows = 64;
  for (int64_t row = 0; row < std::min(table->size(), kMostRows); ++row) {
    for (size_t c = 0; c < table->columns().size(); ++c) {
      try {
        const size_t columns[] = {c};
        table->read(row, columns, value);
        check_value(table->columns()[c], value[0]);
      } catch (const EnvError&) {
      }
    }
    try {
      (void)table->json(row, {});
    } catch (const EnvError&) {
    }
    (void)table->where(row);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3) return 0;
  static const int wanted = wanted_format();
  const FuzzedFormat& format = kFormats[wanted >= 0 ? static_cast<size_t>(wanted) : data[0] % std::size(kFormats)];
  const size_t rest = size - 3,
               first = format.second == nullptr ? rest : std::min<size_t>(rest, data[1] | data[2] << 8);
  const std::string path = (folder() / format.first).string();
  write_file(path, data + 3, first);
  if (format.second != nullptr) write_file(folder() / format.second, data + 3 + first, rest - first);
  try {
    const bool is_folder = std::string(format.first) == "state.json";
    for (const std::string& file :
         is_folder ? table_files_of_folder(folder().string()) : std::vector<std::string>{path})
      read_all(file);
  } catch (const EnvError&) {
  } catch (const SpecError&) {
  }
  std::error_code ignored;
  fs::remove(path, ignored);
  if (format.second != nullptr) fs::remove(folder() / format.second, ignored);
  return 0;
}
