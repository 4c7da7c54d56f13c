// The C interface of MSCCL++'s executor that flowccl calls through ctypes: communicators, plans, buffers, calls.
// A function that can fail returns 0 or a null pointer on failure; flowccl_error then returns the message.
#include <cstring>
#include <memory>
#include <mscclpp/core.hpp>
#include <mscclpp/executor.hpp>
#include <mscclpp/gpu_utils.hpp>
#include <string>
#include <vector>

#ifdef FLOWCCL_WITHOUT_NUMA
namespace mscclpp {
int getDeviceNumaNode(int) { return -1; }
void numaBind(int) {}
}  // namespace mscclpp
#endif

namespace {
thread_local std::string lastError;

template <typename Action>
auto guarded(Action action) -> decltype(action()) {
  try {
    return action();
  } catch (const std::exception& error) {
    lastError = error.what();
  } catch (...) {
    lastError = "unknown error";
  }
  return {};
}

struct Session {
  int rank;
  std::shared_ptr<mscclpp::TcpBootstrap> bootstrap;
  std::shared_ptr<mscclpp::Communicator> communicator;
  std::unique_ptr<mscclpp::Executor> executor;
  std::vector<std::shared_ptr<char>> buffers;
};

bool findType(const char* name, mscclpp::DataType* type) {
  const std::string given(name);
  if (given == "float32") *type = mscclpp::DataType::FLOAT32;
  else if (given == "float16") *type = mscclpp::DataType::FLOAT16;
  else if (given == "bfloat16") *type = mscclpp::DataType::BFLOAT16;
  else if (given == "int32") *type = mscclpp::DataType::INT32;
  else return false;
  return true;
}
}  // namespace

extern "C" {
const char* flowccl_error() { return lastError.c_str(); }

int flowccl_unique_id(char* id) {
  return guarded([&] {
    auto made = mscclpp::TcpBootstrap::createUniqueId();
    static_assert(sizeof(made) == 128);
    std::memcpy(id, made.data(), sizeof(made));
    return 1;
  });
}

void* flowccl_open(int rank, int ranks, const char* id, int timeoutSeconds) {
  return guarded([&]() -> void* {
    auto session = std::make_unique<Session>();
    session->rank = rank;
    mscclpp::UniqueId unique;
    std::memcpy(unique.data(), id, sizeof(unique));
    session->bootstrap = std::make_shared<mscclpp::TcpBootstrap>(rank, ranks);
    session->bootstrap->initialize(unique, timeoutSeconds);
    session->communicator = std::make_shared<mscclpp::Communicator>(session->bootstrap);
    session->executor = std::make_unique<mscclpp::Executor>(session->communicator);
    return session.release();
  });
}

// Ends everything, with the threads that MSCCL++ has started; the other ranks must not use this rank any more.
int flowccl_close(void* session) {
  return guarded([&] { delete static_cast<Session*>(session); return 1; });
}

int flowccl_barrier(void* session) {
  return guarded([&] { static_cast<Session*>(session)->bootstrap->barrier(); return 1; });
}

void* flowccl_buffer(void* session, size_t bytes) {
  return guarded([&]() -> void* {
    auto memory = mscclpp::GpuBuffer<char>(bytes).memory();
    static_cast<Session*>(session)->buffers.push_back(memory);
    return memory.get();
  });
}

// Releases all buffers and everything that was prepared for plans; all ranks must call it, with no call in flight.
int flowccl_reset(void* session) {
  return guarded([&] {
    auto* here = static_cast<Session*>(session);
    here->bootstrap->barrier();
    here->executor.reset();
    here->buffers.clear();
    here->bootstrap->barrier();
    here->executor = std::make_unique<mscclpp::Executor>(here->communicator);
    return 1;
  });
}

void* flowccl_plan(const char* path, int rank) {
  return guarded([&]() -> void* { return new mscclpp::ExecutionPlan(path, rank); });
}

int flowccl_execute(void* session, void* plan, void* input, void* output, size_t inputBytes, size_t outputBytes,
                    const char* type, void* stream) {
  return guarded([&] {
    mscclpp::DataType dataType;
    if (!findType(type, &dataType)) throw std::runtime_error(std::string("no such type: ") + type);
    auto* here = static_cast<Session*>(session);
    here->executor->execute(here->rank, input, output, inputBytes, outputBytes, dataType,
                            *static_cast<mscclpp::ExecutionPlan*>(plan), static_cast<cudaStream_t>(stream));
    return 1;
  });
}
}
