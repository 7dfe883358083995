// Tells text from files that only contain text in packed form, whose bytes are no words.
#include "engine/train/data/text_bytes.h"

#include <fmt/format.h>

#include <string_view>

#include "engine/base/error.h"

namespace trainctl {
namespace {

struct PackedKind {
  std::string_view start;
  std::string_view name;
  std::string_view hint;
};

constexpr PackedKind kPackedKinds[] = {
    {"%PDF", "a PDF file", "extract its text, e.g. pdftotext FILE.pdf FILE.txt"},
    {"PK\x03\x04", "a zip file, as those of Word are", "save its text as a .txt file"},
    {"\xD0\xCF\x11\xE0", "a file of an old Office program", "save its text as a .txt file"},
    {"{\\rtf", "an RTF file", "save its text as a .txt file"},
    {"\x1F\x8B", "compressed by gzip", "unpack it with gunzip, or set dataset.tokenizer, which reads .txt.gz"},
    {"\x28\xB5\x2F\xFD", "compressed by zstd", "unpack it with unzstd, or set dataset.tokenizer, which reads .txt.zst"},
    {"BZh", "compressed by bzip2", "unpack it with bunzip2"},
    {"\xFD"
     "7zXZ",
     "compressed by xz", "unpack it with unxz"},
    {"PAR1", "a Parquet file", "name it FILE.parquet, and set dataset.tokenizer and dataset.field"},
    {"\x89HDF", "an HDF5 file", "write its texts to a .txt or .jsonl file"},
    {"\x7F"
     "ELF",
     "a program", "remove it from dataset.path"},
    {"\xFF\xFE", "text in UTF-16", "convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW"},
    {"\xFE\xFF", "text in UTF-16", "convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW"},
};

}  // namespace

void require_text(std::span<const uint8_t> start, const std::string& path) {
  const std::string_view text(reinterpret_cast<const char*>(start.data()), start.size());
  for (const PackedKind& kind : kPackedKinds)
    if (text.starts_with(kind.start))
      throw SpecError({}, "dataset.path", fmt::format("{} is {}, not plain text", path, kind.name),
                      std::string(kind.hint));
}

}  // namespace trainctl
