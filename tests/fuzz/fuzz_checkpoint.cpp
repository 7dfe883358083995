// libFuzzer target: a checkpoint folder whose files are any bytes. For each of verify, list, the reader and merge the
// result is an answer or an EnvError, and they agree: a folder that verify accepts can be read completely. The input is
// split into checkpoint.json and one rank's file at the first 0xff 0xfe. The manifest gets a valid last line, and the
// words SIZE and DIGEST in it are replaced by the file's true size and checksum, so that fuzzing gets past these
// checks.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/error.h"
#include "engine/train/checkpoint/checkpoint_directory.h"
#include "engine/train/checkpoint/compare.h"
#include "engine/train/checkpoint/piece_reader.h"
#include "engine/train/checkpoint/verify_checkpoint.h"
#include "engine/train/checkpoint/write_whole.h"
#include "engine/train/files/digest.h"

namespace {

using namespace trainctl;

/// In memory where it can be; gone at the end.
struct Folder {
  std::string path;
  Folder() {
    char name[] = "/dev/shm/fuzz_checkpoint.XXXXXX";
    if (mkdtemp(name) == nullptr) abort();
    path = name;
    mkdir((path + "/step_00000001").c_str(), 0700);
  }
  ~Folder() {
    for (const char* file : {"/step_00000001/checkpoint.json", "/step_00000001/rank.0000.safetensors", "/whole"})
      unlink((path + file).c_str());
    rmdir((path + "/step_00000001").c_str());
    rmdir(path.c_str());
  }
  void write(const std::string& name, std::string_view bytes) const {
    const int fd = open((path + name).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || ::write(fd, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) abort();
    close(fd);
  }
};

void replace_all(std::string& text, const std::string& word, const std::string& by) {
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + by.size()))
    text.replace(at, word.size(), by);
}

/// Returns whether all of it could be read.
bool read_all(const std::string& path) {
  constexpr int64_t kMost = int64_t{1} << 20;
  try {
    PieceReader reader(read_manifest(path), path);
    for (const StoredTensor& tensor : reader.manifest().tensors) {
      const int64_t bytes = num_elements(tensor.shape) * byte_size(tensor.dtype);
      if (bytes > kMost) return false;  // no file here is as large, so it cannot be whole
      std::vector<uint8_t> values(static_cast<size_t>(bytes));
      reader.read(tensor.name, tensor.slot, whole_box(tensor.shape), tensor.dtype, values.data());
    }
    return true;
  } catch (const EnvError&) {
    return false;
  }
}

template <class Work>
void survive(const Work& work) {
  try {
    work();
  } catch (const EnvError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Folder folder;
  const std::string path = folder.path + "/step_00000001";
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t cut = std::min(all.find("\xff\xfe"), size);
  const std::string_view file = all.substr(std::min(cut + 2, size));
  std::string manifest(all.substr(0, cut));
  replace_all(manifest, "SIZE", std::to_string(file.size()));
  replace_all(manifest, "DIGEST", digest_of(file));
  manifest += ",\n";
  folder.write("/step_00000001/checkpoint.json", manifest + "\"checksum\": \"" + digest_of(manifest) + "\"}\n");
  folder.write("/step_00000001/rank.0000.safetensors", file);

  const CheckpointDirectory directory(folder.path);
  if (directory.list().size() != 1) abort();
  const bool is_whole = verify_checkpoint(path).problems.empty();
  const bool is_read = read_all(path);
  if (is_whole && !is_read) abort();
  survive([&] { write_whole(read_manifest(path), path, folder.path + "/whole"); });
  survive([&] {
    const auto tensors = open_tensors(path);
    if (is_whole && !compare(*tensors, *tensors).equal()) abort();
  });
  return 0;
}
