// Shards of samples: tar files in which consecutive files with a common stem are a sample, as webdataset writes them.
#include "engine/train/data/sources/tar.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <set>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/base/url.h"
#include "engine/train/data/mapped_file.h"
#include "engine/train/data/sources/field_bytes.h"
#include "engine/train/data/sources/file_list.h"
#include "engine/train/data/sources/npy_header.h"
#include "engine/train/data/sources/open_files.h"
#include "engine/train/data/sources/tar_index.h"
#include "engine/train/files/store/objects.h"

namespace trainctl {
namespace {

enum class TarMemberKind { image, integer, array, bytes };

/// Returns the kind that the last part of the extension names. Throws SpecError (dataset.fields) if no source reads
/// such files.
TarMemberKind kind_of(const std::string& extension, const std::string& where) {
  const std::string last = extension.substr(extension.rfind('.') + 1);
  if (last == "jpg" || last == "jpeg" || last == "png") return TarMemberKind::image;
  if (last == "cls") return TarMemberKind::integer;
  if (last == "npy") return TarMemberKind::array;
  if (last == "txt" || last == "json") return TarMemberKind::bytes;
  throw SpecError({}, "dataset.fields",
                  fmt::format("{} contains .{} files, which are not supported", where, printable(extension)),
                  last == "json" ? "convert the required values to .cls or .npy files, and list the fields to read, "
                                   "e.g. dataset.fields: {image: jpg, label: cls}"
                                 : "list the fields to read, with the extensions jpg, jpeg, png, cls, npy or txt, "
                                   "e.g. dataset.fields: {image: jpg, label: cls}");
}

/// The index of one shard, and its bytes: mapped where it is a file.
struct Shard {
  MappedFile mapped;
  std::vector<uint8_t> built;
  TarIndex index;
  int64_t first = 0;                         ///< sample of the set
  std::vector<std::vector<size_t>> columns;  ///< by field: the extensions of the index that it may have
};

struct TarFieldInfo {
  std::vector<std::string> extensions;
  TarMemberKind kind = TarMemberKind::bytes;
  StoredElement stored = StoredElement::u8;  ///< type of an array's elements
};

Shard open_shard(const OpenFiles& files, size_t f) {
  const std::string &tar = files.address(f), index = tar_index_path(tar);
  const TarStamp stamp = tar_stamp(tar);
  if (std::error_code ignored;
      is_url(index) ? object_store::object_exists(index) : std::filesystem::exists(index, ignored)) {
    MappedFile mapped(index);
    const TarIndex of(mapped.bytes(), stamp, index);
    return {std::move(mapped), {}, of, 0, {}};
  }
  const auto file = files.get(f);
  TarReader reader([&](int64_t at, std::span<uint8_t> to) { file->read(at, to); }, file->bytes(), tar);
  std::vector<uint8_t> built = build_tar_index(std::move(reader), stamp, tar);
  const TarIndex of(built, stamp, index);
  return {{}, std::move(built), of, 0, {}};
}

/// Requests the indices of all shards in a bucket, which are then opened one after the other. For shards on a web
/// server nothing is requested, because the server would first have to be asked whether each index exists.
void expect_indices(const OpenFiles& files) {
  for (size_t f = 0; f < files.size(); ++f) {
    const std::string index = tar_index_path(files.address(f));
    if (!is_url(index) || index.starts_with("http") || !object_store::object_exists(index)) continue;
    if (const InputFile file(index); file.bytes() > 0) file.expect(0, file.bytes());
  }
}

std::vector<TarField> default_fields(const std::vector<Shard>& shards, const std::string& where) {
  std::set<std::string> extensions;
  for (const Shard& shard : shards) extensions.insert(shard.index.extensions().begin(), shard.index.extensions().end());
  std::vector<TarField> fields;
  TarField image{"image", {}};
  for (const std::string& extension : extensions) {
    kind_of(extension, where);
    if (extension == "jpg" || extension == "jpeg" || extension == "png")
      image.extensions.push_back(extension);
    else
      fields.push_back({extension == "cls" ? "label" : extension, {extension}});
  }
  if (!image.extensions.empty()) fields.insert(fields.begin(), image);
  return fields;
}

class TarSet : public Source {
 public:
  explicit TarSet(const TarOptions& options) : files_(list_files(options.paths, "dataset.path")) {
    expect_indices(files_);
    for (size_t f = 0; f < files_.size(); ++f) {
      shards_.push_back(open_shard(files_, f));
      shards_.back().first = size_;
      size_ += shards_.back().index.samples();
    }
    if (size_ == 0) fail_path("contains no samples");
    define_fields(options);
    for (const Shard& shard : shards_)
      if (shard.index.samples() > 0)
        for (size_t field = 0; field < fields_.size(); ++field) part(shard, shard.first, field);
    for (size_t field = 0; field < fields_.size(); ++field)
      if (infos_[field].kind == TarMemberKind::array) learn_array(field);
  }

  int64_t size() const override { return size_; }
  const std::vector<SourceField>& fields() const override { return fields_; }
  const std::vector<std::string>& class_names() const override { return no_names_; }

  void read(int64_t sample, const std::vector<bool>& wanted, std::span<FieldBytes> out) const override {
    const Shard& shard = shard_of(sample);
    const auto file = files_.get(static_cast<size_t>(&shard - shards_.data()));
    for (size_t field = 0; field < fields_.size(); ++field) {
      if (!wanted[field]) continue;
      const TarPart at = part(shard, sample, field);
      out[field].resize(static_cast<size_t>(at.bytes));
      file->read(at.data_at, writable_bytes(out[field]));
      decode(sample, field, at, out[field]);
    }
  }

  /// The files of a sample are adjacent, so one request reads all of them.
  void expect(int64_t sample) const override {
    const Shard& shard = shard_of(sample);
    int64_t begin = std::numeric_limits<int64_t>::max(), end = 0;
    for (size_t e = 0; e < shard.index.extensions().size(); ++e)
      if (const auto at = shard.index.part(sample - shard.first, e)) {
        begin = std::min(begin, at->data_at);
        end = std::max(end, at->data_at + at->bytes);
      }
    if (begin < end) files_.get(static_cast<size_t>(&shard - shards_.data()))->expect(begin, end - begin);
  }

  std::string where(int64_t sample) const override {
    const Shard& shard = shard_of(sample);
    for (size_t e = 0; e < shard.index.extensions().size(); ++e)
      if (const auto at = shard.index.part(sample - shard.first, e))
        return path(shard) + ": " + printable(split_tar_name(member_name(shard, *at)).stem);
    return fmt::format("{}: sample {}", path(shard), with_commas(sample - shard.first));
  }

  int64_t memory_bytes() const override {
    int64_t bytes = files_.memory_bytes() + static_cast<int64_t>(shards_.capacity() * sizeof(Shard));
    for (const Shard& shard : shards_) bytes += static_cast<int64_t>(shard.built.capacity());
    return bytes;
  }

 private:
  [[noreturn]] void fail_path(const std::string& what) const {
    throw SpecError(
        {}, "dataset.path",
        files_.path(0) + (files_.size() > 1 ? fmt::format(" (and {} more) ", files_.size() - 1) : " ") + what,
        "the files of a sample must have a common stem: 000017.jpg, 000017.cls");
  }
  [[noreturn]] void fail(const Shard& shard, const TarPart& at, const std::string& what) const {
    throw EnvError(name_of(shard, at) + ": " + what);
  }
  const std::string& path(const Shard& shard) const {
    return files_.path(static_cast<size_t>(&shard - shards_.data()));
  }
  const Shard& shard_of(int64_t sample) const {
    const auto next = std::upper_bound(shards_.begin(), shards_.end(), sample,
                                       [](int64_t value, const Shard& shard) { return value < shard.first; });
    return *std::prev(next);
  }

  /// Reads the name of a member from the tar file, since the index does not have it.
  std::string member_name(const Shard& shard, const TarPart& at) const {
    const auto file = files_.get(static_cast<size_t>(&shard - shards_.data()));
    TarReader reader([&](int64_t from, std::span<uint8_t> to) { file->read(from, to); }, file->bytes(), file->path(),
                     at.begin);
    TarMember member;
    reader.next(member);
    return member.name;
  }
  /// "shard.tar: 000017.jpg"
  std::string name_of(const Shard& shard, const TarPart& at) const {
    return path(shard) + ": " + printable(member_name(shard, at));
  }

  /// Determines the fields of a sample and the columns of each shard's index that they read.
  void define_fields(const TarOptions& options) {
    const std::vector<TarField> wanted =
        options.fields.empty() ? default_fields(shards_, files_.path(0)) : options.fields;
    for (const TarField& field : wanted) {
      check(!field.extensions.empty(), "a field has an extension");
      TarFieldInfo info{field.extensions, kind_of(field.extensions[0], "dataset.fields." + field.name)};
      for (const std::string& extension : field.extensions)
        if (kind_of(extension, "dataset.fields." + field.name) != info.kind)
          throw SpecError({}, "dataset.fields." + field.name,
                          fmt::format(".{} and .{} are different kinds of files", field.extensions[0], extension),
                          "use a separate field for each");
      for (Shard& shard : shards_) {
        const std::vector<std::string>& names = shard.index.extensions();
        std::vector<size_t> columns;
        for (size_t e = 0; e < names.size(); ++e)
          if (std::find(field.extensions.begin(), field.extensions.end(), names[e]) != field.extensions.end())
            columns.push_back(e);
        if (columns.empty() && shard.index.samples() > 0)
          throw SpecError({}, "dataset.fields." + field.name,
                          fmt::format("{} contains no .{} files", path(shard), join(field.extensions, ", .")),
                          fmt::format("it contains .{}", join(names, ", .")));
        shard.columns.push_back(std::move(columns));
      }
      const bool is_image = info.kind == TarMemberKind::image;
      fields_.push_back({field.name, is_image ? Encoding::image : Encoding::array,
                         info.kind == TarMemberKind::integer ? options.label_type : ElementType::u8,
                         info.kind == TarMemberKind::bytes ? Shape{-1} : Shape{}});
      infos_.push_back(std::move(info));
    }
  }

  /// Determines shape and type of an array field from the first sample; all other samples have the same.
  void learn_array(size_t field) {
    const Shard& shard = shard_of(0);
    const TarPart at = part(shard, 0, field);
    std::vector<uint8_t> start(static_cast<size_t>(std::min(at.bytes, kNpyHeaderBytes)));
    files_.get(static_cast<size_t>(&shard - shards_.data()))->read(at.data_at, start);
    const NpyHeader header = parse_npy_header(start, at.bytes, name_of(shard, at));
    infos_[field].stored = header.stored;
    fields_[field].type = element_type(header.stored);
    fields_[field].shape = header.shape;
  }

  TarPart part(const Shard& shard, int64_t sample, size_t field) const {
    std::optional<TarPart> found;
    for (const size_t column : shard.columns[field]) {
      const auto at = shard.index.part(sample - shard.first, column);
      if (at && found)
        fail(shard, *at, fmt::format("the sample has several files for the field '{}'", fields_[field].name));
      if (at) found = at;
    }
    if (found) return *found;
    throw EnvError(
        fmt::format("{}: the sample has no .{} file for the field '{}'; the files of a sample must be adjacent in "
                    "the archive (tar --sort=name)",
                    where(sample), join(infos_[field].extensions, ", ."), fields_[field].name));
  }

  void decode(int64_t sample, size_t field, const TarPart& at, FieldBytes& bytes) const {
    const Shard& shard = shard_of(sample);
    const SourceField& as = fields_[field];
    const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
    if (infos_[field].kind == TarMemberKind::image && bytes.empty())
      fail(shard, at, "is empty; expected a JPEG or PNG file");
    if (infos_[field].kind == TarMemberKind::integer) {
      std::string_view text(reinterpret_cast<const char*>(data), bytes.size());
      while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) text.remove_suffix(1);
      int64_t value = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      const bool fits = as.type == ElementType::i64 || value == static_cast<int32_t>(value);
      if (error != std::errc() || end != text.data() + text.size() || !fits)
        fail(shard, at,
             fmt::format("expected an integer of type {}, found '{}'", to_string(as.type), printable(shortened(text))));
      store_integer(value, as.type, bytes);
    }
    if (infos_[field].kind == TarMemberKind::array) {
      const std::span<const uint8_t> whole(data, bytes.size());
      const auto start = whole.first(std::min(whole.size(), static_cast<size_t>(kNpyHeaderBytes)));
      const NpyHeader header = [&] {
        try {
          return parse_npy_header(start, at.bytes, "the array");
        } catch (const EnvError& error) {  // a name is read only where it is needed
          fail(shard, at, error.what());
        }
      }();
      if (header.stored != infos_[field].stored || header.shape != as.shape)
        fail(shard, at,
             fmt::format("is {} {}, but that of the first sample is {} {}", to_string(header.stored),
                         to_string(header.shape), to_string(infos_[field].stored), to_string(as.shape)));
      const std::vector<uint8_t> body(whole.begin() + header.data_at, whole.end());
      try {
        convert(header.stored, body, bytes);
      } catch (const EnvError& error) {
        fail(shard, at, error.what());
      }
    }
  }

  OpenFiles files_;
  std::vector<Shard> shards_;
  int64_t size_ = 0;
  std::vector<SourceField> fields_;
  std::vector<TarFieldInfo> infos_;
  std::vector<std::string> no_names_;
};

}  // namespace

std::unique_ptr<Source> open_tar(const TarOptions& options) { return std::make_unique<TarSet>(options); }

}  // namespace trainctl
