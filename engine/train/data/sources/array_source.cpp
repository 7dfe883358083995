// A source over arrays in files: each field is one array, or several joined at their first dim.
#include "engine/train/data/sources/array_source.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/train/data/sources/field_bytes.h"

namespace trainctl {
namespace {

class ArraySource : public Source {
 public:
  ArraySource(std::unique_ptr<OpenFiles> files, std::vector<ArrayColumn> columns)
      : files_(std::move(files)), columns_(std::move(columns)) {
    size_ = columns_.empty() ? 0 : columns_[0].samples();
    if (size_ == 0)
      throw SpecError({}, "dataset.path", files_->path(0) + ": contains no samples",
                      "the first dim of an array "
                      "counts the samples; it must "
                      "not be 0");
    for (const ArrayColumn& column : columns_) {
      if (column.samples() != size_)
        throw SpecError({}, "dataset.fields." + column.name,
                        fmt::format("has {} samples, but '{}' has {}", with_commas(column.samples()), columns_[0].name,
                                    with_commas(size_)),
                        "all arrays need the same first dim");
      fields_.push_back({column.name, Encoding::array, element_type(column.stored), column.shape});
      std::vector<int64_t> firsts;
      int64_t first = 0;
      for (const ArrayPiece& piece : column.pieces) {
        firsts.push_back(first);
        first += piece.samples;
      }
      firsts_.push_back(std::move(firsts));
    }
  }

  int64_t size() const override { return size_; }
  const std::vector<SourceField>& fields() const override { return fields_; }
  const std::vector<std::string>& class_names() const override { return no_names_; }

  void read(int64_t sample, const std::vector<bool>& wanted, std::span<FieldBytes> out) const override {
    for (size_t c = 0; c < columns_.size(); ++c)
      if (wanted[c]) read_field(sample, c, out[c]);
  }

  void expect(int64_t sample) const override {
    for (size_t c = 0; c < columns_.size(); ++c) {
      const auto [piece, within] = place(sample, c);
      const int64_t bytes = num_elements(columns_[c].shape) * byte_size(columns_[c].stored);
      if (!piece->bytes) files_->get(piece->file)->expect(piece->at + within * piece->stride, bytes);
    }
  }

  std::string where(int64_t sample) const override {
    const auto [piece, within] = place(sample, 0);
    return fmt::format("{}: sample {}", files_->path(piece->file), with_commas(within));
  }

  int64_t memory_bytes() const override {
    int64_t bytes = files_->memory_bytes();
    for (const ArrayColumn& column : columns_)
      for (const ArrayPiece& piece : column.pieces)
        bytes += static_cast<int64_t>(sizeof(piece) + (piece.bytes ? piece.bytes->capacity() : 0));
    return bytes;
  }

 private:
  struct Place {
    const ArrayPiece* piece;
    int64_t within;  ///< sample of the piece
  };
  Place place(int64_t sample, size_t column) const {
    const std::vector<int64_t>& firsts = firsts_[column];
    const auto piece = static_cast<size_t>(std::upper_bound(firsts.begin(), firsts.end(), sample) - firsts.begin()) - 1;
    return {&columns_[column].pieces[piece], sample - firsts[piece]};
  }

  void read_field(int64_t sample, size_t c, FieldBytes& out) const {
    const ArrayColumn& column = columns_[c];
    const auto bytes = static_cast<size_t>(num_elements(column.shape) * byte_size(column.stored));
    const auto [piece, within] = place(sample, c);
    const int64_t at = piece->at + within * piece->stride;
    if (piece->bytes)
      return convert_at(sample, c, std::span(*piece->bytes).subspan(static_cast<size_t>(at), bytes), out);
    const bool as_stored = element_type(column.stored) != ElementType::u8 &&
                           byte_size(element_type(column.stored)) == byte_size(column.stored);
    if (as_stored || column.stored == StoredElement::u8) {
      out.resize(bytes);
      return files_->get(piece->file)->read(at, writable_bytes(out));
    }
    std::vector<uint8_t> stored(bytes);
    files_->get(piece->file)->read(at, stored);
    convert_at(sample, c, stored, out);
  }

  void convert_at(int64_t sample, size_t c, std::span<const uint8_t> stored, FieldBytes& out) const {
    try {
      convert(columns_[c].stored, stored, out);
    } catch (const EnvError& error) {
      const auto [piece, within] = place(sample, c);
      throw EnvError(fmt::format("{}: sample {}: {}: {}", files_->path(piece->file), with_commas(within),
                                 columns_[c].name, error.what()));
    }
  }

  std::unique_ptr<OpenFiles> files_;
  std::vector<ArrayColumn> columns_;
  std::vector<std::vector<int64_t>> firsts_;  ///< sample of each piece of each column
  int64_t size_ = 0;
  std::vector<SourceField> fields_;
  std::vector<std::string> no_names_;
};

}  // namespace

int64_t ArrayColumn::samples() const {
  int64_t samples = 0;
  for (const ArrayPiece& piece : pieces) samples += piece.samples;
  return samples;
}

std::unique_ptr<Source> make_array_source(std::unique_ptr<OpenFiles> files, std::vector<ArrayColumn> columns) {
  return std::make_unique<ArraySource>(std::move(files), std::move(columns));
}

}  // namespace trainctl
