// CIFAR's binary files: records of bytes.
#include "engine/train/data/sources/cifar.h"

#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/train/data/sources/array_source.h"
#include "engine/train/data/sources/file_list.h"

namespace trainctl {

std::unique_ptr<Source> open_cifar(const CifarOptions& options) {
  check(options.classes == 10 || options.classes == 100, "CIFAR has 10 or 100 classes");
  const int64_t labels = options.classes == 10 ? 1 : 2, record = labels + 3 * 32 * 32;
  auto files = std::make_unique<OpenFiles>(list_files(options.paths, "dataset.path"));
  std::vector<ArrayColumn> columns = {{"image", StoredElement::u8, {3, 32, 32}, {}},
                                      {"label", StoredElement::u8, {}, {}}};
  if (labels == 2) columns.push_back({"coarse", StoredElement::u8, {}, {}});
  const std::vector<int64_t> offsets = {labels, labels - 1, 0};  // in a record
  for (size_t f = 0; f < files->size(); ++f) {
    const int64_t bytes = files->get(f)->bytes();
    if (bytes == 0 || bytes % record != 0)
      throw EnvError(
          fmt::format("{}: expected records of {} bytes (CIFAR-{}, the binary version), found {} bytes: {} more "
                      "than {} records",
                      files->path(f), with_commas(record), options.classes, with_commas(bytes), bytes % record,
                      with_commas(bytes / record)));
    for (size_t c = 0; c < columns.size(); ++c)
      columns[c].pieces.push_back({f, nullptr, offsets[c], record, bytes / record});
  }
  return make_array_source(std::move(files), std::move(columns));
}

}  // namespace trainctl
