// LSTM and tanh RNN over a chunk of time steps in one launch, for Hopper's tensor cores (sm_90a).
//
// Streams are split into groups that never wait for one another. The CTAs of a group share its weights: each keeps
// ROWS = 128 rows of H columns in registers for all T steps, multiplies them by what the group exchanged in the step
// before (N streams by H), and turns its sums into cells. A counter per group in device memory says how many CTAs have
// written their part of a step. Where there are more streams than groups have room for, groups make several passes.
//
// What is exchanged goes through device memory (L2) in the order in which the tensor cores want it in shared memory, so
// that it comes by copies of whole blocks, without threads. It is written first, and the counter after it; what only
// later kernels need is written after that, while the group waits. Inputs of the next step arrive during the products.
//
// kernel         rows                                columns    a cluster's CTAs                   a CTA's cells
// lstm_forward   4 gates of 32 units                 H units    load a P-th each, for all of them  its 32 units
// lstm_backward  128 units, transposed               4·H gates  have H gates each, add up sums     32 of the 128 units
// rnn_*          128 units (backward: transposed)    H units    -                                  its 128 units
//
// The host defines KERNEL_*, H, N, P (CTAs of a cluster), RESETS, SPIN_LIMIT and SHARED_BYTES, and gives the part that
// differs by N (`multiply_16`). The kernels are in lstm.cu and rnn.cu.
//
// Legend: T time steps, S = T + 1, B streams, H hidden, G = 4·H gates; numbers are bf16 unless they are float.

constexpr int ROWS = 128, THREADS = 256, BLOCKS = H / 64;
constexpr u32 BLOCK_BYTES = N * 128;                   // N streams by 64 columns
constexpr u32 INPUT_BYTES = BLOCKS * BLOCK_BYTES;
constexpr u32 BARRIER_BYTES = 128;
constexpr u32 REST_BYTES = SHARED_BYTES - 1024 - INPUT_BYTES - BARRIER_BYTES;  // for what each kernel keeps
constexpr u32 KEEP_BYTES = 4 * N * 2;
constexpr u32 SUM_BYTES = N * 32 * 4;                  // of a CTA of a cluster, for another
static_assert(ROWS * H * 2 <= SHARED_BYTES - 1024, "weights pass through shared memory");
constexpr int COUNTER_STRIDE = 16;                     // one counter per line of memory

__device__ __forceinline__ float low(u32 pair) { return as_float(pair << 16); }
__device__ __forceinline__ float high(u32 pair) { return as_float(pair & 0xffff0000u); }

// By the GPU's own instruction, whose error is a quarter of bf16's.
__device__ __forceinline__ float squash(float x) { return tanh_approx(x); }
__device__ __forceinline__ float sigmoid(float x) { return 0.5f * tanh_approx(0.5f * x) + 0.5f; }

// Rows of 128 bytes in atoms of 8, whose 16-byte pieces are permuted by the row: the tensor cores' 128-byte swizzle.
__device__ __forceinline__ u32 swizzled(int row, int piece) { return row * 128 + ((piece ^ (row & 7)) << 4); }

__device__ __forceinline__ u64 descriptor(u32 address) {
    return (u64)((address & 0x3ffffu) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}

// Shared memory: the input and its barriers, then what each kernel keeps. Weights pass through it at the start.
struct Shared {
    u32 input, barrier;
};

__device__ __forceinline__ u32 shared_start() { return (shared_base() + 1023u) & ~1023u; }
__device__ __forceinline__ u32 shared_rest() { return shared_start() + INPUT_BYTES + BARRIER_BYTES; }
__device__ __forceinline__ Shared shared_memory() { return {shared_start(), shared_start() + INPUT_BYTES}; }

__device__ __forceinline__ void wait_for(u32 barrier, u32 parity) {
    for (u32 tries = 0; !barrier_passed(barrier, parity); tries++) {
        if (tries >= SPIN_LIMIT) give_up();
    }
}

// Where a thread of the tensor cores' sums stands: rows r and r + 8 of its warp's 16, columns 8·j + 2·q + {0, 1}.
struct Place {
    int thread, warp, lane, r, q;
};

__device__ __forceinline__ Place place() {
    int thread = thread_number();
    return {thread, thread / 32, thread % 32, thread % 32 / 4, thread % 4};
}

// A unit's row: neighbours 2·i and 2·i + 1 of 16 are rows i and i + 8, so that one thread has both.
__device__ __forceinline__ int row_of_pair(int pair) { return pair / 8 * 16 + pair % 8; }

// The thread's part of 128 rows by H columns in shared memory, as the tensor cores take it from registers.
struct Weights {
    u32 part[H / 16][4];

    __device__ __forceinline__ void take(u32 from) {
        Place me = place();
        int row = me.warp * 16 + me.r;
#pragma unroll
        for (int k = 0; k < H / 16; k++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 place = swizzled(row + i % 2 * 8, k % 4 * 2 + i / 2) + me.q * 4;
                part[k][i] = load_4(from + k / 4 * (ROWS * 128) + place);
            }
        }
        fence_async();
        block_sync();
    }
};

// Rows as they are: row `m` of the tile is row `source(m)` of a matrix with H columns.
template <class Source>
__device__ __forceinline__ void keep_rows(Weights& weights, u32 room, const u16* weight, Source source) {
    for (int i = thread_number(); i < ROWS * (H / 8); i += THREADS) {
        int row = i / (H / 8), piece = i % (H / 8);
        u32 to = room + piece / 8 * (ROWS * 128) + swizzled(row, piece % 8);
        copy_16(to, weight + (u64)source(row) * H + piece * 8, true);
    }
    copies_commit();
    copies_wait<0>();
    block_sync();
    weights.take(room);
}

// Columns as rows: unit `first + m` is column m of a matrix with H columns, from its row `from` on.
__device__ __forceinline__ void keep_columns(Weights& weights, u32 room, const u16* weight, int from, int first) {
#pragma unroll 4
    for (int n = 0; n < ROWS / 2 * (H / 8) / THREADS; n++) {
        int i = n * THREADS + thread_number();
        int pair = i % (ROWS / 2), piece = i / (ROWS / 2);
        const u16* source = weight + (u64)(from + piece * 8) * H + first + 2 * pair;
        u32 value[8];
#pragma unroll
        for (int k = 0; k < 8; k++) value[k] = *(const u32*)(source + (u64)k * H);
        u32 even[4], odd[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            even[k] = (value[2 * k] & 0xffffu) | (value[2 * k + 1] << 16);
            odd[k] = (value[2 * k] >> 16) | (value[2 * k + 1] & 0xffff0000u);
        }
        int row = row_of_pair(pair);
        u32 block = room + piece / 8 * (ROWS * 128);
        store_16(block + swizzled(row, piece % 8), even);
        store_16(block + swizzled(row + 8, piece % 8), odd);
    }
    block_sync();
    weights.take(room);
}

// One barrier per block of the input, one for the cluster's sums. Weights have been taken before.
__device__ __forceinline__ void make_barriers() {
    if (thread_number() == 0) {
        for (int i = 0; i <= BLOCKS; i++) barrier_init(shared_memory().barrier + 8 * i);
        barriers_ready();
    }
    block_sync();
}

// The streams that a CTA and its group work on in a pass.
struct Group {
    int number, first, count;
};

__device__ __forceinline__ Group group(int ctas, int passes, int pass, int B, int size) {
    int number = block_number() / ctas * passes + pass;
    int first = number * size;
    int left = B - first;
    int count = left < size ? left : size;
    return {number, count > 0 ? first : 0, count > 0 ? count : 0};
}

// How many arrivals every counter held before this launch: each launch adds the same multiple of the number of CTAs to
// all, and nobody gets past the first wait before this CTA has arrived, so fewer than that many have been added.
__device__ __forceinline__ u64 arrivals_before(const u64* arrived, int number, int ctas) {
    u64 now = load_acquire(arrived + number * COUNTER_STRIDE);
    return now - now % ctas;
}

// Tell the group that this CTA's part of the exchange is written.
__device__ __forceinline__ void arrive(u64* arrived, int number) {
    block_sync();
    if (thread_number() == 0) add_release(arrived + number * COUNTER_STRIDE);
}

// Wait for the group and have its exchange, from `from` on, copied. Only thread 0 does.
__device__ __forceinline__ void request(const Shared& at, const u64* arrived, int number, u64 target, const u16* from) {
    if (thread_number() != 0) return;
#pragma unroll 1
    for (int block = 0; block < BLOCKS; block++) barrier_expect(at.barrier + 8 * block, BLOCK_BYTES);
#ifdef KERNEL_LSTM_BACKWARD
    barrier_expect(at.barrier + 8 * BLOCKS, P * SUM_BYTES);
#endif
    for (u32 tries = 0; load_acquire(arrived + number * COUNTER_STRIDE) < target; tries++) {
        if (tries >= SPIN_LIMIT) give_up();
    }
    fence_async_global();
#if defined(KERNEL_LSTM_FORWARD) && P > 1
    constexpr u32 SHARE = BLOCK_BYTES / P;
    u32 offset = cluster_rank() * SHARE;
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
        u32 place = block * BLOCK_BYTES + offset, barrier = at.barrier + 8 * block;
        copy_block_to_all(at.input + place, (const unsigned char*)from + place, SHARE, barrier, (1 << P) - 1);
    }
#else
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
        u32 place = block * BLOCK_BYTES;
        copy_block(at.input + place, (const unsigned char*)from + place, BLOCK_BYTES, at.barrier + 8 * block);
    }
#endif
}

// The first step's input: `count` rows of a matrix with H columns. Ends all copies that the thread has begun.
__device__ __forceinline__ void load_first(const Shared& at, const u16* input, int count) {
    for (int i = thread_number(); i < N * (H / 8); i += THREADS) {
        int row = i / (H / 8), piece = i % (H / 8);
        bool inside = row < count;
        u32 to = at.input + piece / 8 * BLOCK_BYTES + swizzled(row, piece % 8);
        copy_16(to, input + (u64)(inside ? row : 0) * H + piece * 8, inside);
    }
    copies_commit();
    copies_wait<0>();
    fence_async();
    block_sync();
}

// Rows of PIECES · 16 bytes between device memory and shared memory, where each has 16 bytes more, so that banks
// differ. A thread has the same pieces whichever way they go. The first warp has none: it waits for the group.
template <int PIECES>
constexpr u32 ROW_BYTES = PIECES * 16 + 16;

template <int PIECES, class Number>
__device__ __forceinline__ void load_rows(u32 to, const Number* from, int width, int count) {
#pragma unroll 1
    for (int i = thread_number() - 32; i < count * PIECES && i >= 0; i += THREADS - 32) {
        int row = i / PIECES, piece = i % PIECES;
        const Number* source = from + (u64)row * width + piece * (16 / sizeof(Number));
        copy_16(to + row * ROW_BYTES<PIECES> + piece * 16, source, true);
    }
}

template <int PIECES, class Number>
__device__ __forceinline__ void store_rows(Number* to, int width, u32 from, int count) {
#pragma unroll 1
    for (int i = thread_number() - 32; i < count * PIECES && i >= 0; i += THREADS - 32) {
        int row = i / PIECES, piece = i % PIECES;
        Number* target = to + (u64)row * width + piece * (16 / sizeof(Number));
        write_16(target, load_16(from + row * ROW_BYTES<PIECES> + piece * 16));
    }
}

// sum = weights (this warpgroup's 64 rows) · input (N streams), transposed. `during` is called while products are done.
template <class During>
__device__ __forceinline__ void multiply(float (&sum)[N / 2], const Weights& weights, const Shared& at, bool arriving,
                                         u32 parity, During during) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) sum[i] = 0.0f;
    mma_hold(sum);
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
        if (arriving) wait_for(at.barrier + 8 * block, parity);
        u64 right = descriptor(at.input + block * BLOCK_BYTES);
        mma_begin();
#pragma unroll
        for (int k = 0; k < 4; k++) multiply_16(sum, weights.part[block * 4 + k], right + 2 * k);
        mma_commit();
        // One warpgroup after the other, so that the tensor cores are never without work.
        if (block == (thread_number() < THREADS / 2 ? 0 : BLOCKS / 2)) during();
    }
    mma_wait<0>();
    mma_hold(sum);
}

#if RESETS
// Whether a stream keeps its state before step t, for the steps around the current one, in shared memory.
__device__ __forceinline__ void load_keeps(u32 to, const u16* keep_SB, int B, const Group& now, int t) {
    int stream = thread_number() - 32;
    if (stream >= 0 && stream < now.count) {
        store_2(to + (t % 4 * N + stream) * 2, keep_SB[(u64)t * B + now.first + stream]);
    }
}

__device__ __forceinline__ bool kept(u32 keeps, int t, int stream) { return load_2(keeps + (t % 4 * N + stream) * 2); }
#endif

#if P > 1
#define CLUSTER __cluster_dims__(P, 1, 1)
#else
#define CLUSTER
#endif
