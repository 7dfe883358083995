// libtrainctl_arrow.so: what trainctl needs of Arrow C++, behind C functions (arrow_interface.h). `./bootstrap arrow`
// builds it against the headers and libraries in the wheel of pyarrow.
#include <arrow/api.h>
#include <arrow/c/bridge.h>
#include <arrow/io/api.h>
#include <arrow/ipc/api.h>
#include <arrow/util/byte_size.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/arrow/writer.h>
#include <parquet/file_reader.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/train/data/tables/arrow_interface.h"

namespace {

/// Throws the error of a status. guarded() turns the exception into the text of an error.
void require(const arrow::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}
template <class T>
T require(arrow::Result<T> result) {
  require(result.status());
  return std::move(result).ValueUnsafe();
}

void report(TrainctlArrowError error, const char* text) {
  if (error.text == nullptr || error.bytes <= 0) return;
  std::strncpy(error.text, text, static_cast<size_t>(error.bytes - 1));
  error.text[error.bytes - 1] = '\0';
}

/// Calls a function, and turns its exceptions into error texts, because no exception may leave the library.
template <class F>
int guarded(TrainctlArrowError error, F&& run) {
  try {
    run();
    return 0;
  } catch (const std::bad_alloc&) {
    report(error, "out of memory");
  } catch (const std::exception& caught) {
    report(error, caught.what());
  } catch (...) {
    report(error, "unknown error");
  }
  return 1;
}

/// A file whose bytes a function of trainctl reads.
class CalledFile final : public arrow::io::RandomAccessFile {
 public:
  CalledFile(const TrainctlArrowBytes& bytes, arrow::MemoryPool* pool) : bytes_(bytes), pool_(pool) {}

  arrow::Status Close() override {
    is_closed_ = true;
    return arrow::Status::OK();
  }
  bool closed() const override { return is_closed_; }
  arrow::Result<int64_t> Tell() const override { return at_; }
  arrow::Result<int64_t> GetSize() override { return bytes_.size; }
  arrow::Status Seek(int64_t position) override {
    if (position < 0) return arrow::Status::Invalid("negative position");
    at_ = position;
    return arrow::Status::OK();
  }
  arrow::Result<int64_t> Read(int64_t count, void* out) override {
    ARROW_ASSIGN_OR_RAISE(const int64_t got, ReadAt(at_, count, out));
    at_ += got;
    return got;
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(int64_t count) override {
    ARROW_ASSIGN_OR_RAISE(auto buffer, ReadAt(at_, count));
    at_ += buffer->size();
    return buffer;
  }
  arrow::Result<int64_t> ReadAt(int64_t position, int64_t count, void* out) override {
    if (position < 0 || count < 0 || position > bytes_.size) return arrow::Status::Invalid("reads outside of the file");
    count = std::min(count, bytes_.size - position);
    char text[1024] = "";
    if (bytes_.read(bytes_.state, position, count, static_cast<uint8_t*>(out), {text, sizeof text}) != 0)
      return arrow::Status::IOError(text);
    return count;
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> ReadAt(int64_t position, int64_t count) override {
    const int64_t most = std::max<int64_t>(bytes_.size - position, 0);
    ARROW_ASSIGN_OR_RAISE(auto buffer, arrow::AllocateResizableBuffer(std::min(count, most), pool_));
    ARROW_ASSIGN_OR_RAISE(const int64_t got, ReadAt(position, buffer->size(), buffer->mutable_data()));
    ARROW_RETURN_NOT_OK(buffer->Resize(got));
    return std::shared_ptr<arrow::Buffer>(std::move(buffer));
  }

 private:
  TrainctlArrowBytes bytes_;
  arrow::MemoryPool* pool_;
  int64_t at_ = 0;
  bool is_closed_ = false;
};

/// Opens the bytes of a file, each time for one reader.
struct ShimBytes {
  TrainctlArrowBytes bytes;
  arrow::MemoryPool* pool;

  std::shared_ptr<arrow::io::RandomAccessFile> open() const {
    if (bytes.data == nullptr) return std::make_shared<CalledFile>(bytes, pool);
    return std::make_shared<arrow::io::BufferReader>(std::make_shared<arrow::Buffer>(bytes.data, bytes.size));
  }
};

class ShimFile {
 public:
  virtual ~ShimFile() = default;
  virtual std::shared_ptr<arrow::Schema> schema() const = 0;
  virtual int64_t groups() const = 0;
  virtual int64_t rows(int64_t group) const = 0;
  virtual std::shared_ptr<arrow::RecordBatch> read(int64_t group, const std::vector<int>& columns) const = 0;
  virtual void expect(int64_t, const std::vector<int>&) const {}
};

/// Adds the leaf columns of a top-level field; readers of row groups count columns in this way.
void add_leaves(const parquet::arrow::SchemaField& field, std::vector<int>& leaves) {
  if (field.is_leaf()) leaves.push_back(field.column_index);
  for (const auto& child : field.children) add_leaves(child, leaves);
}

class ParquetFile final : public ShimFile {
 public:
  explicit ParquetFile(ShimBytes bytes) : bytes_(bytes), pool_(bytes.pool) {
    auto reader = open();
    metadata_ = reader->parquet_reader()->metadata();
    require(reader->GetSchema(&schema_));
    for (const auto& field : reader->manifest().schema_fields) add_leaves(field, leaves_.emplace_back());
  }
  std::shared_ptr<arrow::Schema> schema() const override { return schema_; }
  int64_t groups() const override { return metadata_->num_row_groups(); }
  int64_t rows(int64_t group) const override { return metadata_->RowGroup(static_cast<int>(group))->num_rows(); }

  std::shared_ptr<arrow::RecordBatch> read(int64_t group, const std::vector<int>& columns) const override {
    std::vector<int> leaves;
    for (const int column : columns) leaves.insert(leaves.end(), leaves_.at(column).begin(), leaves_.at(column).end());
    auto reader = open();
    std::shared_ptr<arrow::Table> table = require(reader->ReadRowGroup(static_cast<int>(group), leaves));
    auto batch = require(table->CombineChunksToBatch(pool_));
    // The reader returns the columns in the order of the file.
    std::vector<std::shared_ptr<arrow::Array>> arrays;
    std::vector<std::shared_ptr<arrow::Field>> fields;
    for (const int column : columns) {
      fields.push_back(schema_->field(column));
      arrays.push_back(batch->GetColumnByName(fields.back()->name()));
      if (!arrays.back()) throw std::runtime_error("the row group has no column " + fields.back()->name());
    }
    return arrow::RecordBatch::Make(arrow::schema(std::move(fields)), batch->num_rows(), std::move(arrays));
  }

  void expect(int64_t group, const std::vector<int>& columns) const override {
    if (bytes_.bytes.expect == nullptr) return;
    const auto row_group = metadata_->RowGroup(static_cast<int>(group));
    for (const int column : columns) {
      for (const int leaf : leaves_.at(column)) {
        const auto chunk = row_group->ColumnChunk(leaf);
        int64_t at = chunk->data_page_offset();
        if (chunk->has_dictionary_page() && chunk->dictionary_page_offset() > 0)
          at = std::min(at, chunk->dictionary_page_offset());
        const int64_t size = std::min(chunk->total_compressed_size(), bytes_.bytes.size - at);
        if (at >= 0 && size > 0) bytes_.bytes.expect(bytes_.bytes.state, at, size);
      }
    }
  }

 private:
  /// Opens a reader for one read, since readers are not thread-safe. The metadata are parsed only once.
  std::unique_ptr<parquet::arrow::FileReader> open() const {
    parquet::arrow::FileReaderBuilder builder;
    parquet::ReaderProperties properties(pool_);
    require(builder.Open(bytes_.open(), properties, metadata_));
    builder.memory_pool(pool_);
    parquet::ArrowReaderProperties arrow_properties(false);
    builder.properties(arrow_properties);
    return require(builder.Build());
  }

  ShimBytes bytes_;
  arrow::MemoryPool* pool_;
  std::shared_ptr<parquet::FileMetaData> metadata_;
  std::shared_ptr<arrow::Schema> schema_;
  std::vector<std::vector<int>> leaves_;
};

std::shared_ptr<arrow::RecordBatch> validated(std::shared_ptr<arrow::RecordBatch> batch) {
  require(batch->Validate());
  return batch;
}

arrow::ipc::IpcReadOptions ipc_options(arrow::MemoryPool* pool) {
  auto options = arrow::ipc::IpcReadOptions::Defaults();
  options.memory_pool = pool;
  options.use_threads = false;
  return options;
}

/// Arrow's file format, also Feather 2.
class IpcFile final : public ShimFile {
 public:
  explicit IpcFile(ShimBytes bytes) : bytes_(bytes) {
    const auto reader = open({});
    schema_ = reader->schema();
    auto counter = schema_->num_fields() > 0 ? open({0}) : nullptr;  // decodes as little as possible
    for (int group = 0; group < reader->num_record_batches(); ++group)
      rows_.push_back(counter ? require(counter->ReadRecordBatch(group))->num_rows() : 0);
  }
  std::shared_ptr<arrow::Schema> schema() const override { return schema_; }
  int64_t groups() const override { return static_cast<int64_t>(rows_.size()); }
  int64_t rows(int64_t group) const override { return rows_.at(static_cast<size_t>(group)); }
  std::shared_ptr<arrow::RecordBatch> read(int64_t group, const std::vector<int>& columns) const override {
    const auto batch = require(open(columns)->ReadRecordBatch(static_cast<int>(group)));
    std::vector<std::shared_ptr<arrow::Array>> arrays;
    std::vector<std::shared_ptr<arrow::Field>> fields;
    for (const int column : columns) {
      fields.push_back(schema_->field(column));
      const auto position = std::count_if(columns.begin(), columns.end(), [&](int other) { return other < column; });
      arrays.push_back(batch->column(static_cast<int>(position)));
    }
    return validated(arrow::RecordBatch::Make(arrow::schema(std::move(fields)), batch->num_rows(), std::move(arrays)));
  }

 private:
  std::shared_ptr<arrow::ipc::RecordBatchFileReader> open(std::vector<int> columns) const {
    auto options = ipc_options(bytes_.pool);
    options.included_fields = std::move(columns);
    return require(arrow::ipc::RecordBatchFileReader::Open(bytes_.open(), options));
  }

  ShimBytes bytes_;
  std::shared_ptr<arrow::Schema> schema_;
  std::vector<int64_t> rows_;
};

/// Arrow's stream format, as Hugging Face datasets write it. The batches refer to the file's bytes.
class IpcStream final : public ShimFile {
 public:
  explicit IpcStream(ShimBytes bytes) {
    auto reader = require(arrow::ipc::RecordBatchStreamReader::Open(bytes.open(), ipc_options(bytes.pool)));
    schema_ = reader->schema();
    for (;;) {
      std::shared_ptr<arrow::RecordBatch> batch;
      require(reader->ReadNext(&batch));
      if (!batch) break;
      batches_.push_back(validated(std::move(batch)));
    }
  }
  std::shared_ptr<arrow::Schema> schema() const override { return schema_; }
  int64_t groups() const override { return static_cast<int64_t>(batches_.size()); }
  int64_t rows(int64_t group) const override { return batches_.at(static_cast<size_t>(group))->num_rows(); }
  std::shared_ptr<arrow::RecordBatch> read(int64_t group, const std::vector<int>& columns) const override {
    return require(batches_.at(static_cast<size_t>(group))->SelectColumns(columns));
  }

 private:
  std::shared_ptr<arrow::Schema> schema_;
  std::vector<std::shared_ptr<arrow::RecordBatch>> batches_;
};

/// An open file with the pool that bounds its memory.
struct OpenFile {
  std::unique_ptr<arrow::MemoryPool> pool;
  std::unique_ptr<ShimFile> file;
};

void* open_file(const TrainctlArrowBytes* from, int64_t most_bytes, TrainctlArrowError error) {
  auto open = std::make_unique<OpenFile>();
  const int failed = guarded(error, [&] {
    open->pool = std::make_unique<arrow::CappedMemoryPool>(arrow::default_memory_pool(), most_bytes);
    const ShimBytes bytes{*from, open->pool.get()};
    char magic[8] = "";
    (void)require(bytes.open()->ReadAt(0, 6, magic));
    const std::string_view begin(magic);
    if (begin.starts_with("PAR1") || begin.starts_with("PARE"))
      open->file = std::make_unique<ParquetFile>(bytes);
    else if (begin.starts_with("ARROW1"))
      open->file = std::make_unique<IpcFile>(bytes);
    else if (begin.starts_with("FEA1"))
      throw std::runtime_error("is Feather 1, which Arrow no longer reads; write it as Feather 2");
    else
      open->file = std::make_unique<IpcStream>(bytes);
  });
  return failed != 0 ? nullptr : open.release();
}

ShimFile& file_of(void* file) { return *static_cast<OpenFile*>(file)->file; }

int read_schema(void* file, ArrowSchema* out, TrainctlArrowError error) {
  return guarded(error, [&] { require(arrow::ExportSchema(*file_of(file).schema(), out)); });
}

/// Starts reading a group. A failure is reported when the group is read.
void expect_group(void* file, int64_t group, const int32_t* columns, int32_t count) {
  (void)guarded({nullptr, 0}, [&] { file_of(file).expect(group, std::vector<int>(columns, columns + count)); });
}

int read_group(void* file, int64_t group, const int32_t* columns, int32_t count, ArrowArray* out,
               int64_t* decoded_bytes, TrainctlArrowError error) {
  return guarded(error, [&] {
    const auto batch = file_of(file).read(group, std::vector<int>(columns, columns + count));
    if (batch->num_rows() != file_of(file).rows(group))
      throw std::runtime_error("group " + std::to_string(group) + " has " + std::to_string(batch->num_rows()) +
                               " rows, but its metadata say " + std::to_string(file_of(file).rows(group)));
    *decoded_bytes = arrow::util::TotalBufferSize(*batch);
    require(arrow::ExportRecordBatch(*batch, out));
  });
}

struct Writer {
  std::shared_ptr<arrow::Schema> schema;
  std::shared_ptr<arrow::io::FileOutputStream> out;
  std::unique_ptr<parquet::arrow::FileWriter> parquet;
  std::shared_ptr<arrow::ipc::RecordBatchWriter> ipc;
};

void* create_file(const char* path, TrainctlArrowForm form, ArrowSchema* schema, TrainctlArrowError error) {
  auto writer = std::make_unique<Writer>();
  const int failed = guarded(error, [&] {
    writer->schema = require(arrow::ImportSchema(schema));
    writer->out = require(arrow::io::FileOutputStream::Open(path));
    if (form != kArrowParquet) {
      writer->ipc = require(form == kArrowIpcFile ? arrow::ipc::MakeFileWriter(writer->out, writer->schema)
                                                  : arrow::ipc::MakeStreamWriter(writer->out, writer->schema));
      return;
    }
    parquet::WriterProperties::Builder properties;
    properties.compression(parquet::Compression::ZSTD);
    writer->parquet = require(
        parquet::arrow::FileWriter::Open(*writer->schema, arrow::default_memory_pool(), writer->out, properties.build(),
                                         parquet::ArrowWriterProperties::Builder().store_schema()->build()));
  });
  return failed != 0 ? nullptr : writer.release();
}

int write_batch(void* to, ArrowArray* array, TrainctlArrowError error) {
  return guarded(error, [&] {
    auto& writer = *static_cast<Writer*>(to);
    const auto batch = require(arrow::ImportRecordBatch(array, writer.schema));
    if (writer.ipc) return require(writer.ipc->WriteRecordBatch(*batch));
    const auto table = require(arrow::Table::FromRecordBatches(writer.schema, {batch}));
    require(writer.parquet->WriteTable(*table, std::max<int64_t>(batch->num_rows(), 1)));
  });
}

int finish_file(void* to, TrainctlArrowError error) {
  const std::unique_ptr<Writer> writer(static_cast<Writer*>(to));
  return guarded(error, [&] {
    require(writer->ipc ? writer->ipc->Close() : writer->parquet->Close());
    require(writer->out->Close());
  });
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const TrainctlArrow* trainctl_arrow() {
  static const TrainctlArrow functions = {
      trainctl::kArrowShimVersion,
      ARROW_VERSION_STRING,
      open_file,
      [](void* file) { delete static_cast<OpenFile*>(file); },
      [](void* file) { return file_of(file).groups(); },
      [](void* file, int64_t group) { return file_of(file).rows(group); },
      read_schema,
      read_group,
      expect_group,
      create_file,
      write_batch,
      finish_file,
  };
  return &functions;
}
