// Finds data sets on disk. Threads: pure functions on the file system.
#pragma once

#include <string>
#include <vector>

#include "proto/base/status.h"
#include "proto/job.pb.h"
#include "proto/shard.pb.h"

namespace swax {

struct DataSet {
  std::string folder;
  Status status;                 // of reading the manifest, digest included
  pb::DatasetManifest manifest;  // when status is ok
};

// `folder` itself when it is a data set, else those of its subfolders that are, sorted by name.
// kNotFound: there are none.
Result<std::vector<DataSet>> find_data_sets(const std::string& folder);

// The folder of a source's data set: its path, or, for a text that a run builds, the data set below
// `store` (STATE/store/data) that was built from it. kNotFound with the reason.
Result<DataSet> find_source_data(const pb::DataSource& source, const std::string& store);

int64_t split_tokens(const pb::DatasetManifest& manifest, std::string_view split);  // 0: no such

}  // namespace swax
