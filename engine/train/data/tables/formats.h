// The functions that open a table of each format, given only its path. table_file.cpp lists them by format.
#pragma once

#include <memory>
#include <string>

#include "engine/train/data/tables/table_file.h"

namespace trainctl {

/// JSON Lines, also compressed by gzip or zstd. The columns are those of the first row. Numbers are untyped; lists of
/// numbers have the shape of the first row in their type, and the row's own in their values. EnvError as all readers.
std::unique_ptr<TableFile> open_json_lines(const std::string& path);
/// TFRecord files of tf.Example: the features of the first example are the columns. Checksums are compared.
std::unique_ptr<TableFile> open_tfrecord(const std::string& path);
/// The file of an LMDB environment, read without its library (lmdb.cpp has the format).
std::unique_ptr<TableFile> open_lmdb(const std::string& path);
/// HDF5 files (hdf5.cpp has the columns), read without their library. Datasets may have different numbers of rows until
/// some are chosen: size() is the largest, and values beyond the end are null.
std::unique_ptr<TableFile> open_hdf5(const std::string& path);

/// Text tables with a header: *.csv, and *.tsv with tabs. For conversions; data sets read them through open_csv().
std::unique_ptr<TableFile> open_csv_table(const std::string& path);
/// The delimiter of a text table: tab for *.tsv; else the one of comma, semicolon, tab and | that divides the first two
/// rows into the same number of values, and into the most of them. A comma if none does.
char csv_delimiter(const std::string& path);

}  // namespace trainctl
