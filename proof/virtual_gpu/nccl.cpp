// NCCL as far as ProcessGroupNCCL uses it: ranks meet in shared memory that the unique id names.
//
// A collective begins when its last rank does, and lasts as the rule says for the bytes on the wire of a ring, with the
// slowest of its devices. Calls of one communicator run in the order in which they were made, on whichever stream: torch
// makes synchronous calls on the current stream and asynchronous ones on a stream of its own. Algorithms and protocols
// are names that choose a line of the rule, and stand in the log as NCCL writes them. Left out: the network, channels.
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <sstream>

#include "elements.hpp"
#include "rule.hpp"
#include "timeline.hpp"

using namespace virtual_gpu;

namespace {

constexpr int MOST_RANKS = 64;
// Bytes that a rank shows to the others at once.
constexpr size_t SLOT = 1 << 20;

// One direction of a pair of ranks; `written` and `read` count parts of a message.
struct Channel {
    std::atomic<unsigned long long> written, read;
    std::atomic<Nanoseconds> sender_began, receiver_began;
    std::atomic<size_t> bytes;
};

struct Shared {
    std::atomic<int> joined;
    std::atomic<unsigned> arrived, round;
    std::atomic<Nanoseconds> began[MOST_RANKS];
    std::atomic<int> color[MOST_RANKS], key[MOST_RANKS], device[MOST_RANKS];
    Channel channel[MOST_RANKS][MOST_RANKS];  // from, to
};
constexpr size_t HEAD = (sizeof(Shared) + 4095) / 4096 * 4096;

// What a rank that waits for others raises when its communicator is aborted.
struct Aborted {};

}  // namespace

struct ncclComm {
    int rank, size, device;
    Shared* shared;
    char* slots;
    std::string name;
    unsigned splits = 0;
    std::map<std::string, int> calls;  // of each operation
    std::atomic<int> async_error{ncclSuccess};
    std::atomic<bool> aborted{false};
    MomentPtr last;  // the end of the last call
    std::mutex order;

    char* slot(int of_rank) const { return slots + of_rank * SLOT; }
    size_t mapped() const { return HEAD + size * SLOT; }
};

namespace {

void meet(ncclComm* comm) {
    Shared* shared = comm->shared;
    const unsigned round = shared->round;
    if (shared->arrived.fetch_add(1) + 1 == static_cast<unsigned>(comm->size)) {
        shared->arrived = 0;
        shared->round++;
        return;
    }
    for (Pause pause; shared->round == round; pause())
        if (comm->aborted) throw Aborted();
}

// The instant at which the last rank begins.
Nanoseconds together(ncclComm* comm, Nanoseconds begin) {
    comm->shared->began[comm->rank] = begin;
    meet(comm);
    Nanoseconds last = begin;
    for (int rank = 0; rank < comm->size; rank++) last = std::max(last, comm->shared->began[rank].load());
    meet(comm);
    return last;
}

// What a variable such as NCCL_ALGO says of a function: `allreduce:tree;broadcast:ring`, or one word for all of them.
std::string told(const char* variable, const std::string& function) {
    const char* value = getenv(variable);
    std::istringstream parts(value ? value : "");
    for (std::string part; std::getline(parts, part, ';');) {
        const size_t colon = part.find(':');
        if (colon != std::string::npos && part.substr(0, colon) != function) continue;
        std::string word = colon == std::string::npos ? part : part.substr(colon + 1);
        for (char& letter : word) letter = static_cast<char>(tolower(letter));
        return word;
    }
    return "";
}

// The operation with the algorithm and protocol that it has, such as `all_reduce.tree.ll`; without, if the rule and the
// variables say nothing of them.
std::string chosen(const std::string& operation) {
    std::string function = operation;
    function.erase(std::remove(function.begin(), function.end(), '_'), function.end());
    const std::string usual = Rule::get().text("chosen", ""), algorithm = told("NCCL_ALGO", function);
    if (algorithm.empty()) return usual.empty() ? operation : operation + "." + usual;
    const std::string protocol = told("NCCL_PROTO", function);
    return operation + "." + algorithm + "." + (protocol.empty() ? "simple" : protocol);
}

// A line in NCCL's log, from the communicator's rank 0.
void tell_choice(const ncclComm* comm, const std::string& choice, size_t bytes) {
    static FILE* log = [] {
        const char *level = getenv("NCCL_DEBUG"), *path = getenv("NCCL_DEBUG_FILE");
        return level && path && !strcmp(level, "INFO") ? fopen(path, "a") : nullptr;
    }();
    std::istringstream words(choice);
    std::string operation, algorithm, protocol, name;
    std::getline(std::getline(std::getline(words, operation, '.'), algorithm, '.'), protocol);
    if (!log || comm->rank || protocol.empty()) return;
    bool first = true;
    for (char letter : operation) {
        if (letter != '_') name += static_cast<char>(first ? toupper(letter) : letter);
        first = letter == '_';
    }
    for (std::string* word : {&algorithm, &protocol})
        for (char& letter : *word) letter = static_cast<char>(toupper(letter));
    fprintf(log, "virtual:%d:%d [%d] NCCL INFO %s: %zu Bytes -> Algo %s proto %s channel{Lo..Hi}={0..0}\n", getpid(),
            getpid(), comm->device, name.c_str(), bytes, algorithm.c_str(), protocol.c_str());
    fflush(log);
}

// As long as the slowest device lets it take: of all ranks, or of these.
Nanoseconds duration(ncclComm* comm, const char* operation, double wire_bytes, const std::set<int>& ranks = {}) {
    double latency_us = 0, gbps = 1e30;
    for (int rank = 0; rank < comm->size; rank++) {
        if (!ranks.empty() && !ranks.count(rank)) continue;
        const int device = comm->shared->device[rank];
        latency_us = std::max(latency_us, number("latency_us", device, operation));
        gbps = std::min(gbps, number("bus_gbps", device, operation));
    }
    return 1000 * latency_us + wire_bytes / gbps;
}

// Each rank shows `bytes` at `mine` to all, part by part; `use(rank, offset, part, length)` sees the parts of all.
template <class Use>
void exchange(ncclComm* comm, const void* mine, size_t bytes, size_t width, Use use) {
    const size_t step = SLOT / width * width;
    for (size_t offset = 0; offset < bytes; offset += step) {
        const size_t length = std::min(step, bytes - offset);
        if (mine) memcpy(comm->slot(comm->rank), static_cast<const char*>(mine) + offset, length);
        meet(comm);
        for (int rank = 0; rank < comm->size; rank++) use(rank, offset, comm->slot(rank), length);
        meet(comm);
    }
}

// A line a call on each rank, in the folder that the rule names: what was true.
void note(const char* operation, ncclComm* comm, double bytes, Nanoseconds own, Nanoseconds begin, Nanoseconds end) {
    static FILE* ledger = [] {
        const std::string folder = Rule::get().text("ledger", "");
        return folder.empty() ? nullptr : fopen((folder + "/" + std::to_string(getpid()) + ".tsv").c_str(), "a");
    }();
    if (!ledger) return;
    fprintf(ledger, "%s\t%d\t%d\t%.0f\t%lld\t%lld\t%lld\n", operation, comm->rank, comm->size, bytes, own, begin, end);
    fflush(ledger);
}

// Whether calls that are enqueued move their bytes; hook.py unsets it where nobody looks at the results.
std::atomic<bool> moves_bytes{true};

// ── the order of calls ───────────────────────────────────────────────────────────────────────────
struct Call {
    ncclComm* comm;
    Stream* stream;
    Operation run;
};

struct Transfer {
    ncclComm* comm;
    Stream* stream;
    bool sends;
    char* buffer;
    size_t bytes;
    int peer;
    bool moves;
};

// Calls between ncclGroupStart and ncclGroupEnd of a thread.
thread_local int group_depth = 0;
thread_local std::vector<Call> grouped_calls;
thread_local std::vector<Transfer> grouped_transfers;

void enqueue(Stream* stream, const std::vector<ncclComm*>& comms, const Operation& run) {
    if (stream->capturing) {  // the graph keeps the order
        stream->enqueue([run](Nanoseconds begin) {
            try {
                return run(begin);
            } catch (Aborted&) {
                return std::max(begin, now());
            }
        });
        return;
    }
    std::vector<MomentPtr> before;
    const auto mine = std::make_shared<Moment>();
    for (ncclComm* comm : comms) {
        const std::lock_guard lock(comm->order);
        if (comm->last) before.push_back(comm->last);
        comm->last = mine;
    }
    stream->enqueue([=](Nanoseconds begin) {
        try {
            for (const MomentPtr& moment : before) {
                for (Pause pause; !moment->known; pause())
                    for (ncclComm* comm : comms)
                        if (comm->aborted) throw Aborted();
                begin = std::max(begin, moment->at);
            }
            mine->at = run(begin);
        } catch (Aborted&) {
            mine->at = std::max(begin, now());
        }
        mine->known = true;
        return mine->at;
    });
}

bool is_flipped(ncclComm* comm, const char* operation, int call, const Stream* stream) {
    if (stream->capturing && number("flip_captured", comm->device, operation)) return true;
    const int every = number("flip_every", comm->device, operation);
    return call == number("flip_call", comm->device, operation) || (every && call % every == 0);
}

void flip(void* elements, size_t count, size_t width) {
    static_cast<unsigned char*>(elements)[(count / 2 + 1) * width - 1] ^= 0x40;
}

Nanoseconds transferred(const std::vector<Transfer>& transfers, Nanoseconds begin);

ncclResult_t flush_group() {
    for (const Call& call : std::exchange(grouped_calls, {})) enqueue(call.stream, {call.comm}, call.run);
    std::vector<Transfer> left = std::exchange(grouped_transfers, {});
    while (!left.empty()) {
        Stream* stream = left.front().stream;
        std::vector<Transfer> here, others;
        for (const Transfer& transfer : left) (transfer.stream == stream ? here : others).push_back(transfer);
        std::vector<ncclComm*> comms;
        for (const Transfer& transfer : here)
            if (std::find(comms.begin(), comms.end(), transfer.comm) == comms.end()) comms.push_back(transfer.comm);
        std::vector<Transfer> flipped;  // of each communicator, what one call received from another rank
        for (ncclComm* comm : comms)
            if (is_flipped(comm, "send_recv", ++comm->calls["send_recv"], stream))
                for (const Transfer& t : here)
                    if (t.comm == comm && t.moves && !t.sends && t.peer != comm->rank && t.bytes) { flipped.push_back(t); break; }
        enqueue(stream, comms, [here, flipped](Nanoseconds begin) {
            const Nanoseconds end = transferred(here, begin);
            for (const Transfer& t : flipped) flip(t.buffer, t.bytes, 1);
            return end;
        });
        left = others;
    }
    return ncclSuccess;
}

void spend_on_host(int device) {
    for (const Nanoseconds end = now() + 1000 * number("enqueue_us", device); now() < end;) {}
}

// A collective: `move` moves its bytes, then it lasts as the rule says. wire_bytes: that a rank sends on a ring.
ncclResult_t submit(const char* operation, ncclComm* comm, cudaStream_t handle, double wire_bytes,
                    std::function<void(bool flipped)> move) {
    Stream* stream = stream_of(handle);
    const int call = ++comm->calls[operation];
    const bool flipped = is_flipped(comm, operation, call, stream), moves = moves_bytes;
    if (call == number("error_call", comm->device, operation)) return ncclSystemError;
    const bool broken = call == number("async_error_call", comm->device, operation);
    spend_on_host(comm->device);
    const std::string choice = chosen(operation);
    tell_choice(comm, choice, static_cast<size_t>(wire_bytes));
    grouped_calls.push_back({comm, stream, [=](Nanoseconds own) {
        if (broken) {
            comm->async_error = ncclRemoteError;
            for (Pause pause; !comm->aborted;) pause();
            throw Aborted();
        }
        const Nanoseconds begin = together(comm, own);
        if (moves) move(flipped);
        const Nanoseconds end = begin + duration(comm, choice.c_str(), wire_bytes);
        note(operation, comm, wire_bytes, own, begin, end);
        return end;
    }});
    return group_depth ? ncclSuccess : flush_group();
}

// Sends and receives that were made together run together, those of the same pair in their order.
Nanoseconds transferred(const std::vector<Transfer>& transfers, Nanoseconds begin) {
    enum State { MOVING, UNREAD, OVER };  // UNREAD: of a send whose last part the receiver has not taken yet
    std::vector<size_t> done(transfers.size(), 0);
    std::vector<State> state(transfers.size(), MOVING);
    std::map<ncclComm*, std::pair<double, double>> sent_and_received;
    std::map<ncclComm*, std::set<int>> together;
    for (const Transfer& t : transfers) together[t.comm].insert({t.comm->rank, t.peer});
    Nanoseconds last = begin;
    Pause pause;
    auto step = [&](size_t i) {
        const Transfer& t = transfers[i];
        for (size_t j = 0; j < i; j++)
            if (state[j] != OVER && transfers[j].sends == t.sends && transfers[j].peer == t.peer && transfers[j].comm == t.comm)
                return false;
        const int from = t.sends ? t.comm->rank : t.peer, to = t.sends ? t.peer : t.comm->rank;
        Channel& channel = t.comm->shared->channel[from][to];
        const size_t part = t.moves ? SLOT / t.comm->size : t.bytes;
        char* room = t.comm->slot(from) + to * part;
        auto& [sent, received] = sent_and_received[t.comm];
        if (t.sends) {
            if (channel.written != channel.read) return false;
            if (state[i] == UNREAD || done[i]) last = std::max(last, channel.receiver_began.load());
            if (state[i] == UNREAD) {
                state[i] = OVER;
                if (t.peer != t.comm->rank) sent += t.bytes;
                return true;
            }
            channel.bytes = std::min(part, t.bytes - done[i]);
            if (t.moves) memcpy(room, t.buffer + done[i], channel.bytes);
            channel.sender_began = begin;
            done[i] += channel.bytes;
            channel.written++;
            if (done[i] == t.bytes) state[i] = UNREAD;
            return true;
        }
        if (channel.written == channel.read) return false;
        if (t.moves) memcpy(t.buffer + done[i], room, channel.bytes);
        done[i] += channel.bytes;
        last = std::max(last, channel.sender_began.load());
        channel.receiver_began = begin;
        channel.read++;
        if (done[i] >= t.bytes) {
            state[i] = OVER;
            if (t.peer != t.comm->rank) received += t.bytes;
        }
        return true;
    };
    while (std::any_of(state.begin(), state.end(), [](State s) { return s != OVER; })) {
        bool moved = false;
        for (size_t i = 0; i < transfers.size(); i++) {
            if (transfers[i].comm->aborted) throw Aborted();
            if (state[i] != OVER) moved |= step(i);
        }
        if (moved) pause = Pause();
        else pause();
    }
    Nanoseconds end = last;
    for (const auto& [comm, bytes] : sent_and_received) {
        const double most = std::max(bytes.first, bytes.second);
        end = std::max(end, last + duration(comm, "send_recv", most, together[comm]));
        note("send_recv", comm, most, begin, last, end);
    }
    return end;
}

// ── reductions ───────────────────────────────────────────────────────────────────────────────────
std::mutex scalars_mutex;
std::map<int, double> scalars;  // of operations that multiply by a scalar before they sum

struct Reduction {
    ncclRedOp_t op;
    ncclDataType_t dtype;
    double scalar = 1;
    bool scales = false;

    Reduction(ncclRedOp_t asked, ncclDataType_t type) : op(asked), dtype(type) {
        if (static_cast<int>(asked) < static_cast<int>(ncclNumOps)) return;
        const std::lock_guard lock(scalars_mutex);
        op = ncclSum;
        scales = true;
        scalar = scalars.at(asked);
    }

    // Reduces elements [first, first + count) of what all ranks show into `into`.
    void into(void* into, const void* mine, size_t total, size_t first, size_t count, ncclComm* comm) const {
        const size_t width = width_of(dtype), low = first * width, high = (first + count) * width;
        std::vector<char> scaled;
        if (scales) {
            scaled.assign(static_cast<const char*>(mine), static_cast<const char*>(mine) + total * width);
            scale(scaled.data(), total, dtype, scalar);
        }
        // In place, a part is overwritten only when all ranks have shown it.
        exchange(comm, scales ? scaled.data() : mine, total * width, width, [&](int rank, size_t offset, const char* part, size_t length) {
            const size_t begin = std::max(offset, low), end = std::min(offset + length, high);
            if (!into || begin >= end) return;
            char* place = static_cast<char*>(into) + begin - low;
            if (rank == 0) memcpy(place, part + begin - offset, end - begin);
            else combine(place, part + begin - offset, (end - begin) / width, dtype, op);
        });
        if (into && op == ncclAvg) divide(into, count, dtype, comm->size);
    }
};

// ── communicators ────────────────────────────────────────────────────────────────────────────────
ncclComm* mapped(int file, const std::string& name, int size, int rank, int device) {
    const size_t bytes = HEAD + size * SLOT;
    if (file < 0 || ftruncate(file, bytes)) {
        perror("virtual GPU: shared memory");
        abort();
    }
    char* memory = static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    auto* comm = new ncclComm;
    comm->rank = rank;
    comm->size = size;
    comm->device = device;
    comm->shared = reinterpret_cast<Shared*>(memory);
    comm->slots = memory + HEAD;
    comm->name = name;
    comm->shared->device[rank] = device;
    return comm;
}

ncclComm* joined(const std::string& name, int size, int rank) {
    const int file = shm_open(name.c_str(), O_RDWR | O_CREAT, 0600);
    ncclComm* comm = mapped(file, name, size, rank, current_device());
    close(file);
    comm->shared->joined++;
    while (comm->shared->joined < size) usleep(200);
    meet(comm);
    if (rank == 0) shm_unlink(name.c_str());
    return comm;
}

}  // namespace

extern "C" {

void virtual_gpu_move_bytes(int whether) { moves_bytes = whether; }

ncclResult_t ncclGetVersion(int* version) {
    *version = number("nccl_version");
    return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
    switch (result) {
        case ncclSuccess: return "no error";
        case ncclSystemError: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
        case ncclRemoteError: return "remote process exited or there was a network error";
        default: return "another error of the virtual GPU";
    }
}

const char* ncclGetLastError(ncclComm_t) { return "an error that the rule of the virtual GPU asks for"; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    unsigned char bytes[12];
    const int file = open("/dev/urandom", O_RDONLY);
    if (read(file, bytes, sizeof bytes) != sizeof bytes) abort();
    close(file);
    memset(id, 0, sizeof *id);
    char* text = reinterpret_cast<char*>(id);
    text += sprintf(text, "/virtual-gpu-");
    for (unsigned char byte : bytes) text += sprintf(text, "%02x", byte);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t*) {
    if (size > MOST_RANKS) return ncclInvalidArgument;
    *comm = joined(reinterpret_cast<const char*>(&id), size, rank);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
    return ncclCommInitRankConfig(comm, size, id, rank, nullptr);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int size, int rank, int, ncclUniqueId* ids, ncclConfig_t* config) {
    return ncclCommInitRankConfig(comm, size, ids[0], rank, config);
}

// One process with several GPUs: torch's DataParallel.
ncclResult_t ncclCommInitAll(ncclComm_t* comms, int size, const int* devices) {
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    const std::string name = reinterpret_cast<const char*>(&id);
    const int file = shm_open(name.c_str(), O_RDWR | O_CREAT, 0600);
    shm_unlink(name.c_str());
    for (int rank = 0; rank < size; rank++) comms[rank] = mapped(file, name, size, rank, devices ? devices[rank] : rank);
    comms[0]->shared->joined = size;
    close(file);
    return ncclSuccess;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* split, ncclConfig_t*) {
    Shared* shared = comm->shared;
    const unsigned number = ++comm->splits;
    shared->color[comm->rank] = color;
    shared->key[comm->rank] = key;
    int size = 0, rank = 0;
    try {
        meet(comm);
        for (int other = 0; other < comm->size; other++) {
            if (shared->color[other] != color) continue;
            size++;
            rank += shared->key[other] < key || (shared->key[other] == key && other < comm->rank);
        }
        meet(comm);
    } catch (Aborted&) {
        return ncclInternalError;
    }
    *split = nullptr;
    if (color >= 0) *split = joined(comm->name + "-" + std::to_string(number) + "-" + std::to_string(color), size, rank);
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    for (Stream* stream : streams_of(comm->device)) stream->wait_for_bytes();
    munmap(comm->shared, comm->mapped());
    comm->shared = nullptr;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    if (comm) comm->aborted = true;
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
    *result = comm ? static_cast<ncclResult_t>(comm->async_error.load()) : ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclCommCount(ncclComm_t comm, int* count) {
    *count = comm->size;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
    *rank = comm->rank;
    return ncclSuccess;
}

// Registered memory is memory like any other here.
ncclResult_t ncclCommRegister(ncclComm_t, void*, size_t, void** handle) {
    *handle = reinterpret_cast<void*>(1);
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(ncclComm_t, void*) { return ncclSuccess; }

ncclResult_t ncclCommWindowRegister(ncclComm_t, void*, size_t, ncclWindow_t* window, int) {
    *window = reinterpret_cast<ncclWindow_t>(1);
    return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t) { return ncclSuccess; }
ncclResult_t ncclMemAlloc(void** pointer, size_t bytes) { return cudaMalloc(pointer, bytes) ? ncclSystemError : ncclSuccess; }
ncclResult_t ncclMemFree(void* pointer) { return cudaFree(pointer) ? ncclSystemError : ncclSuccess; }

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* value, ncclDataType_t dtype, ncclScalarResidence_t, ncclComm_t) {
    static std::atomic<int> next{ncclNumOps};
    const int number = next++;
    const std::lock_guard lock(scalars_mutex);
    scalars[number] = scalar(value, dtype);
    *op = static_cast<ncclRedOp_t>(number);
    return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t) { return ncclSuccess; }

ncclResult_t ncclGroupStart() {
    group_depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd() { return --group_depth ? ncclSuccess : flush_group(); }

// ── collectives ──────────────────────────────────────────────────────────────────────────────────
// NCCL has no kernel that averages float8 with one rank (src/device/onerank.cu; seen on an H200 with 2.28.9).
static ncclResult_t reducible(ncclRedOp_t op, ncclDataType_t dtype, ncclComm_t comm) {
    const bool lacking = comm->size == 1 && op == ncclAvg && (dtype == ncclFloat8e4m3 || dtype == ncclFloat8e5m2);
    return lacking ? ncclInvalidArgument : ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t dtype, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
    const size_t width = width_of(dtype);
    const double wire_bytes = 2.0 * (comm->size - 1) / comm->size * count * width;
    if (const ncclResult_t result = reducible(op, dtype, comm)) return result;
    return submit("all_reduce", comm, stream, wire_bytes, [=, reduction = Reduction(op, dtype)](bool flipped) {
        reduction.into(receive, send, count, 0, count, comm);
        if (flipped) flip(receive, count, width);
    });
}

ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t dtype, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
    const size_t width = width_of(dtype);
    if (const ncclResult_t result = reducible(op, dtype, comm)) return result;
    return submit("reduce", comm, stream, count * width, [=, reduction = Reduction(op, dtype)](bool flipped) {
        reduction.into(comm->rank == root ? receive : nullptr, send, count, 0, count, comm);
        if (flipped && comm->rank == root) flip(receive, count, width);
    });
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t dtype, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
    const size_t width = width_of(dtype);
    const double wire_bytes = (comm->size - 1.0) * count * width;
    if (const ncclResult_t result = reducible(op, dtype, comm)) return result;
    return submit("reduce_scatter", comm, stream, wire_bytes, [=, reduction = Reduction(op, dtype)](bool flipped) {
        std::vector<char> own(count * width);  // in place, the result lies in what the others still read
        reduction.into(own.data(), send, count * comm->size, count * comm->rank, count, comm);
        memcpy(receive, own.data(), own.size());
        if (flipped) flip(receive, count, width);
    });
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t dtype, int root,
                           ncclComm_t comm, cudaStream_t stream) {
    const size_t width = width_of(dtype), bytes = count * width;
    return submit("broadcast", comm, stream, bytes, [=](bool flipped) {
        exchange(comm, comm->rank == root ? send : nullptr, bytes, width,
                 [=](int rank, size_t offset, const char* part, size_t length) {
                     if (rank == root) memcpy(static_cast<char*>(receive) + offset, part, length);
                 });
        if (flipped) flip(receive, count, width);
    });
}

ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm, cudaStream_t stream) {
    return ncclBroadcast(buffer, buffer, count, dtype, root, comm, stream);
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t dtype, ncclComm_t comm,
                           cudaStream_t stream) {
    const size_t width = width_of(dtype), bytes = count * width;
    return submit("all_gather", comm, stream, (comm->size - 1.0) * bytes, [=](bool flipped) {
        const std::vector<char> own(static_cast<const char*>(send), static_cast<const char*>(send) + bytes);
        exchange(comm, own.data(), bytes, width, [=](int rank, size_t offset, const char* part, size_t length) {
            memcpy(static_cast<char*>(receive) + rank * bytes + offset, part, length);
        });
        if (flipped) flip(receive, count * comm->size, width);
    });
}

static ncclResult_t transfer(bool sends, const void* buffer, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                             cudaStream_t handle) {
    Stream* stream = stream_of(handle);
    spend_on_host(comm->device);
    auto* bytes = const_cast<char*>(static_cast<const char*>(buffer));
    grouped_transfers.push_back({comm, stream, sends, bytes, count * width_of(dtype), peer, moves_bytes});
    return group_depth ? ncclSuccess : flush_group();
}

ncclResult_t ncclSend(const void* buffer, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return transfer(true, buffer, count, dtype, peer, comm, stream);
}

ncclResult_t ncclRecv(void* buffer, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm, cudaStream_t stream) {
    return transfer(false, buffer, count, dtype, peer, comm, stream);
}

ncclResult_t ncclAlltoAll(const void* send, void* receive, size_t count, ncclDataType_t dtype, ncclComm_t comm,
                          cudaStream_t stream) {
    const size_t bytes = count * width_of(dtype);
    ncclGroupStart();
    for (int rank = 0; rank < comm->size; rank++) {
        ncclSend(static_cast<const char*>(send) + rank * bytes, count, dtype, rank, comm, stream);
        ncclRecv(static_cast<char*>(receive) + rank * bytes, count, dtype, rank, comm, stream);
    }
    return ncclGroupEnd();
}

ncclResult_t ncclGather(const void* send, void* receive, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm,
                        cudaStream_t stream) {
    const size_t bytes = count * width_of(dtype);
    ncclGroupStart();
    ncclSend(send, count, dtype, root, comm, stream);
    for (int rank = 0; comm->rank == root && rank < comm->size; rank++)
        ncclRecv(static_cast<char*>(receive) + rank * bytes, count, dtype, rank, comm, stream);
    return ncclGroupEnd();
}

ncclResult_t ncclScatter(const void* send, void* receive, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm,
                         cudaStream_t stream) {
    const size_t bytes = count * width_of(dtype);
    ncclGroupStart();
    for (int rank = 0; comm->rank == root && rank < comm->size; rank++)
        ncclSend(static_cast<const char*>(send) + rank * bytes, count, dtype, rank, comm, stream);
    ncclRecv(receive, count, dtype, root, comm, stream);
    return ncclGroupEnd();
}

}  // extern "C"
