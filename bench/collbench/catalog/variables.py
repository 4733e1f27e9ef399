"""List the environment variables that may be set for ranks, and those that may be recorded.

Both are allow-lists. For ranks, because some variables make a process load foreign code, start a program, open a port
or write a file: the table has only variables that are known to tune and do nothing else. For records, because an
environment can contain credentials: the environment of this machine (`machine.environment`), and the environment in the
output of another tool (`importers`). Reads no environment.
"""

import difflib
import re
from collections.abc import Iterable

# Names of loopback's interface, as gloo, NCCL and Open MPI take them.
_LOOPBACK = frozenset({"lo", "=lo"})
# Variables that choose interfaces or transports → the values with which ranks of one machine stay on loopback or in
# shared memory. An empty value is none of them: it unsets the variable, and the library chooses. Open MPI's `btl` is
# not among them, because its TCP keeps to btl_tcp_if_include.
NETWORKS = {
    "GLOO_SOCKET_IFNAME": _LOOPBACK,
    "NCCL_SOCKET_IFNAME": _LOOPBACK,
    "OMPI_MCA_btl_tcp_if_include": _LOOPBACK,
    "OMPI_MCA_btl_tcp_if_exclude": frozenset[str](),
    "OMPI_MCA_mtl": frozenset[str](),
    "OMPI_MCA_pml": frozenset({"ob1"}),
    "FI_TCP_IFACE": _LOOPBACK,
    "UCX_NET_DEVICES": _LOOPBACK,
    "UCX_TLS": frozenset({"self", "sm", "shm", "posix", "sysv", "cma", "xpmem", "knem", "cuda_copy", "cuda_ipc"}),
}
# Sources: the environment variables of NCCL's guide 2.30 (without "Debugging" but NCCL_DEBUG) and the names in its
# library; torch's page of ProcessGroupNCCL's; the names in torch's gloo; `ucx_info -f` and the sources of UCX;
# `ompi_info -a` of Open MPI 5.0; libfabric's manual. Left out: variables that name a file, a folder, a plugin, a
# program, an address or a port, that write files, or that have an effect only with another variable of these kinds.
_TABLES = {
    "NCCL": """
    NCCL_ALGO NCCL_ALLOC_P2P_NET_LL_BUFFERS NCCL_BUFFSIZE NCCL_CGA_CLUSTER_SIZE NCCL_CHECK_POINTERS NCCL_CHUNK_SIZE
    NCCL_COLLNET_ENABLE NCCL_COLLNET_NODE_THRESHOLD NCCL_COMM_BLOCKING NCCL_COMM_SHRINK_SHARE_RESOURCES
    NCCL_COMM_SPLIT_SHARE_RESOURCES NCCL_CROSS_NIC NCCL_CTA_POLICY NCCL_CUMEM_ENABLE NCCL_CUMEM_HOST_ENABLE NCCL_DEBUG
    NCCL_DEBUG_SUBSYS NCCL_DMABUF_ENABLE NCCL_GDRCOPY_ENABLE NCCL_GDR_FLUSH_DISABLE NCCL_GRAPH_HELPER_DISABLE
    NCCL_GRAPH_MIXING_SUPPORT NCCL_GRAPH_REGISTER NCCL_IB_ADAPTIVE_ROUTING NCCL_IB_AR_THRESHOLD NCCL_IB_DATA_DIRECT
    NCCL_IB_DISABLE NCCL_IB_ECE_ENABLE NCCL_IB_FIFO_TC NCCL_IB_GID_INDEX NCCL_IB_HCA NCCL_IB_MERGE_NICS
    NCCL_IB_MERGE_VFS NCCL_IB_PCI_RELAXED_ORDERING NCCL_IB_PKEY NCCL_IB_QPS_PER_CONNECTION NCCL_IB_RETRY_CNT
    NCCL_IB_ROCE_VERSION_NUM NCCL_IB_SL NCCL_IB_SPLIT_DATA_ON_QPS NCCL_IB_TC NCCL_IB_TIMEOUT NCCL_IB_USE_INLINE
    NCCL_IGNORE_CPU_AFFINITY NCCL_IGNORE_DISABLED_P2P NCCL_L1_SHARED_MEMORY_CARVEOUT NCCL_LAUNCH_MODE
    NCCL_LAUNCH_ORDER_IMPLICIT NCCL_LL128_BUFFSIZE NCCL_LL128_C2C NCCL_LL128_NTHREADS NCCL_LL_BUFFSIZE
    NCCL_LOCAL_REGISTER NCCL_MAX_CTAS NCCL_MAX_NCHANNELS NCCL_MAX_P2P_NCHANNELS NCCL_MEM_SYNC_DOMAIN NCCL_MIN_CTAS
    NCCL_MIN_NCHANNELS NCCL_MIN_P2P_NCHANNELS NCCL_MNNVL_ENABLE NCCL_NCHANNELS_PER_NET_PEER NCCL_NET
    NCCL_NETDEVS_POLICY NCCL_NET_DISABLE_INTRA NCCL_NET_FORCE_FLUSH NCCL_NET_GDR_C2C NCCL_NET_GDR_LEVEL
    NCCL_NET_GDR_READ NCCL_NET_MERGE_LEVEL NCCL_NET_OPTIONAL_RECV_COMPLETION NCCL_NET_OVERHEAD NCCL_NET_SHARED_BUFFERS
    NCCL_NET_SHARED_COMMS NCCL_NSOCKS_PERTHREAD NCCL_NTHREADS NCCL_NVB_DISABLE NCCL_NVLSTREE_MAX_CHUNKSIZE
    NCCL_NVLS_CHUNKSIZE NCCL_NVLS_ENABLE NCCL_NVLS_NCHANNELS NCCL_NVTX_DISABLE NCCL_P2P_DIRECT_DISABLE
    NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_P2P_LL_THRESHOLD NCCL_P2P_NET_CHUNKSIZE NCCL_P2P_NVL_CHUNKSIZE
    NCCL_P2P_PCI_CHUNKSIZE NCCL_P2P_PER_CHANNEL_NET_BW NCCL_P2P_PXN_LEVEL NCCL_P2P_READ_ENABLE
    NCCL_P2P_USE_CUDA_MEMCPY NCCL_PAT_ENABLE NCCL_PROGRESS_APPENDOP_FREQ NCCL_PROTO NCCL_PROXY_APPEND_BATCH_SIZE
    NCCL_PXN_C2C NCCL_PXN_DISABLE NCCL_RAS_ENABLE NCCL_RUNTIME_CONNECT NCCL_SET_STACK_SIZE NCCL_SHM_DISABLE
    NCCL_SHM_LOCALITY NCCL_SHM_MEMCPY_MODE NCCL_SHM_USE_CUDA_MEMCPY NCCL_SINGLE_PROC_MEM_REG_ENABLE NCCL_SOCKET_FAMILY
    NCCL_SOCKET_IFNAME NCCL_SOCKET_INLINE NCCL_SOCKET_MIN_TASKSIZE NCCL_SOCKET_NTHREADS NCCL_SOCKET_RCVBUF
    NCCL_SOCKET_SNDBUF NCCL_SYM_CTAS NCCL_SYM_KERNEL NCCL_THREAD_THRESHOLDS NCCL_UNPACK_DOUBLE_NCHANNELS
    NCCL_WIN_ENABLE NCCL_WORK_ARGS_BYTES NCCL_WORK_FIFO_BYTES
    """,
    "NCCL in torch": """
    TORCH_NCCL_ASYNC_ERROR_HANDLING TORCH_NCCL_AVOID_RECORD_STREAMS TORCH_NCCL_BLOCKING_WAIT
    TORCH_NCCL_CUDA_EVENT_CACHE TORCH_NCCL_ENABLE_MONITORING TORCH_NCCL_ENABLE_TIMING TORCH_NCCL_HIGH_PRIORITY
    TORCH_NCCL_NAN_CHECK TORCH_NCCL_RANKS_PER_ROOT TORCH_NCCL_USE_COMM_NONBLOCKING
    TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK
    """,
    "gloo": """
    GLOO_DEVICE_TRANSPORT GLOO_DISABLE_CONNECTION_RETRIES GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER GLOO_ENABLE_STORE_V2_API
    GLOO_LOG_LEVEL GLOO_SOCKET_IFNAME TORCH_GLOO_LAZY_INIT
    """,
    "UCX": """
    UCX_ADAPTIVE_PROGRESS UCX_BCOPY_BW UCX_BCOPY_THRESH UCX_CUDA_COPY_MAX_REG_RATIO UCX_FENCE_MODE UCX_IB_AR_ENABLE
    UCX_IB_GID_INDEX UCX_IB_GPU_DIRECT_RDMA UCX_IB_PCI_RELAXED_ORDERING UCX_IB_PKEY UCX_IB_SL UCX_IB_TRAFFIC_CLASS
    UCX_LOG_LEVEL UCX_MAX_EAGER_RAILS UCX_MAX_RMA_RAILS UCX_MAX_RNDV_RAILS UCX_MEMTYPE_CACHE
    UCX_MEMTYPE_REG_WHOLE_ALLOC_TYPES UCX_MIN_RNDV_CHUNK_SIZE UCX_MULTI_LANE_MAX_RATIO UCX_MULTI_PATH_RATIO
    UCX_NET_DEVICES UCX_NUM_EPS UCX_NUM_PPN UCX_PREFER_OFFLOAD UCX_PROTO_ENABLE UCX_RCACHE_ENABLE UCX_RC_PATH_MTU
    UCX_RC_RX_QUEUE_LEN UCX_RC_TX_QUEUE_LEN UCX_RNDV_ALIGN_THRESH UCX_RNDV_FRAG_MEM_TYPE UCX_RNDV_FRAG_SIZE
    UCX_RNDV_PERF_DIFF UCX_RNDV_PIPELINE_SEND_THRESH UCX_RNDV_PIPELINE_SHM_ENABLE UCX_RNDV_SCHEME
    UCX_RNDV_SEND_NBR_THRESH UCX_RNDV_THRESH UCX_SEG_SIZE UCX_TCP_MAX_NUM_EPS UCX_TCP_RX_SEG_SIZE UCX_TCP_TX_SEG_SIZE
    UCX_TLS UCX_TM_FORCE_THRESH UCX_TM_THRESH UCX_UNIFIED_MODE UCX_USE_MT_MUTEX UCX_WARN_UNUSED_ENV_VARS
    UCX_ZCOPY_THRESH
    """,
    "libfabric": """
    FI_EFA_ENABLE_SHM_TRANSFER FI_EFA_FORK_SAFE FI_EFA_INTER_MAX_MEDIUM_MESSAGE_SIZE FI_EFA_RX_SIZE FI_EFA_TX_SIZE
    FI_EFA_USE_DEVICE_RDMA FI_EFA_USE_HUGE_PAGE FI_LOG_LEVEL FI_MR_CACHE_MAX_COUNT FI_MR_CACHE_MAX_SIZE
    FI_MR_CACHE_MONITOR FI_OFI_RXM_BUFFER_SIZE FI_OFI_RXM_SAR_LIMIT FI_PROVIDER FI_TCP_IFACE FI_TCP_RX_SIZE
    FI_TCP_TX_SIZE FI_UNIVERSE_SIZE
    """,
    "Open MPI": """
    OMPI_MCA_btl OMPI_MCA_btl_sm_eager_limit OMPI_MCA_btl_sm_fbox_max OMPI_MCA_btl_sm_fbox_size
    OMPI_MCA_btl_sm_fbox_threshold OMPI_MCA_btl_sm_free_list_inc OMPI_MCA_btl_sm_free_list_max
    OMPI_MCA_btl_sm_free_list_num OMPI_MCA_btl_sm_max_inline_send OMPI_MCA_btl_sm_max_send_size
    OMPI_MCA_btl_sm_memcpy_limit OMPI_MCA_btl_sm_rndv_eager_limit OMPI_MCA_btl_sm_segment_size
    OMPI_MCA_btl_tcp_eager_limit OMPI_MCA_btl_tcp_endpoint_cache OMPI_MCA_btl_tcp_if_exclude
    OMPI_MCA_btl_tcp_if_include OMPI_MCA_btl_tcp_links OMPI_MCA_btl_tcp_max_send_size OMPI_MCA_btl_tcp_progress_thread
    OMPI_MCA_btl_tcp_rcvbuf OMPI_MCA_btl_tcp_rndv_eager_limit OMPI_MCA_btl_tcp_sndbuf OMPI_MCA_btl_tcp_use_nagle
    OMPI_MCA_coll OMPI_MCA_coll_adapt_bcast_algorithm OMPI_MCA_coll_adapt_bcast_segment_size
    OMPI_MCA_coll_adapt_priority OMPI_MCA_coll_adapt_reduce_algorithm OMPI_MCA_coll_adapt_reduce_segment_size
    OMPI_MCA_coll_basic_crossover OMPI_MCA_coll_basic_priority OMPI_MCA_coll_han_allreduce_segsize
    OMPI_MCA_coll_han_bcast_segsize OMPI_MCA_coll_han_priority OMPI_MCA_coll_han_reduce_segsize
    OMPI_MCA_coll_han_reproducible OMPI_MCA_coll_libnbc_priority OMPI_MCA_coll_sm_control_size
    OMPI_MCA_coll_sm_fragment_size OMPI_MCA_coll_sm_priority OMPI_MCA_coll_sm_tree_degree
    OMPI_MCA_coll_sync_barrier_after OMPI_MCA_coll_sync_barrier_before OMPI_MCA_coll_sync_priority
    OMPI_MCA_coll_tuned_allgather_algorithm OMPI_MCA_coll_tuned_allgather_algorithm_segmentsize
    OMPI_MCA_coll_tuned_allgatherv_algorithm OMPI_MCA_coll_tuned_allgatherv_algorithm_segmentsize
    OMPI_MCA_coll_tuned_allreduce_algorithm OMPI_MCA_coll_tuned_allreduce_algorithm_segmentsize
    OMPI_MCA_coll_tuned_alltoall_algorithm OMPI_MCA_coll_tuned_alltoall_algorithm_segmentsize
    OMPI_MCA_coll_tuned_alltoallv_algorithm OMPI_MCA_coll_tuned_barrier_algorithm OMPI_MCA_coll_tuned_bcast_algorithm
    OMPI_MCA_coll_tuned_bcast_algorithm_segmentsize OMPI_MCA_coll_tuned_gather_algorithm
    OMPI_MCA_coll_tuned_gather_algorithm_segmentsize OMPI_MCA_coll_tuned_init_chain_fanout
    OMPI_MCA_coll_tuned_init_tree_fanout OMPI_MCA_coll_tuned_priority OMPI_MCA_coll_tuned_reduce_algorithm
    OMPI_MCA_coll_tuned_reduce_algorithm_segmentsize OMPI_MCA_coll_tuned_reduce_scatter_algorithm
    OMPI_MCA_coll_tuned_reduce_scatter_algorithm_segmentsize OMPI_MCA_coll_tuned_reduce_scatter_block_algorithm
    OMPI_MCA_coll_tuned_scatter_algorithm OMPI_MCA_coll_tuned_scatter_algorithm_segmentsize
    OMPI_MCA_coll_tuned_use_dynamic_rules OMPI_MCA_mpi_leave_pinned OMPI_MCA_mpi_param_check OMPI_MCA_mpi_preconnect_all
    OMPI_MCA_mpi_yield_when_idle OMPI_MCA_mtl OMPI_MCA_op_avx_support OMPI_MCA_pml OMPI_MCA_pml_ob1_recv_pipeline_depth
    OMPI_MCA_pml_ob1_send_pipeline_depth OMPI_MCA_pml_ob1_use_all_rdma OMPI_MCA_pml_ucx_multi_send_nb
    OMPI_MCA_pml_ucx_progress_iterations OMPI_MCA_smsc OMPI_MCA_smsc_cma_priority
    """,
}
# Variable → the library that it tunes.
TUNING = {name: library for library, names in _TABLES.items() for name in names.split()}
# Backend → beginnings of the variables that only its libraries read; NCCL's network plugins use UCX and libfabric.
READ_BY = {
    "gloo": ("GLOO_", "TORCH_GLOO_"),
    "nccl": ("NCCL_", "TORCH_NCCL_", "CUDA_VISIBLE_", "HIP_VISIBLE_", "ROCR_VISIBLE_", "UCX_", "FI_"),
    "mpi": ("OMPI_MCA_", "UCX_", "FI_"),
}
# Variables that are read when a process starts. Ranks come from a process that has already started; only sides of `ab`
# take them, because they have processes of their own.
AT_START = frozenset(
    {"OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_WAIT_POLICY", "OMP_DYNAMIC", "MKL_NUM_THREADS", "MKL_DYNAMIC"}
)
# Smallest similarity of proposed names: with less, names are similar only because they begin with the same letters.
LIKENESS = 0.8
# No path, no space, nothing that a shell or a terminal would act upon. ";" divides operations, in NCCL only.
VALUE = re.compile(r"[\w.,:^=+-]*(;\w+:[\w.,:^=+-]*)*", re.ASCII)
# Lets NCCL accept several ranks on one GPU: it compares hosts and bus ids, so each rank also claims to be on a host of
# its own (NCCL_HOSTID), and can then communicate only through sockets. NCCL_MULTI_RANK_GPU_ENABLE does the same from
# NCCL 2.30.3 on.
SHARED_GPU = {
    "NCCL_NET": "Socket",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MAX_CTAS": "2",
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_HOSTID": "collbench",
}
ALLOWED = re.compile(
    r"(NCCL_|GLOO_|TORCH_|OMP_|MKL_|(CUDA|HIP|ROCR)_VISIBLE|UCX_|FI_)[A-Z0-9_]*"
    r"|SLURM_(JOB|STEP)_(ID|NUM_NODES|NUM_TASKS|NODELIST|PARTITION|TASKS_PER_NODE|GPUS|CPUS_PER_NODE)"
    # Variables that tune Open MPI, by its frameworks; its job variables contain paths and addresses.
    r"|OMPI_MCA_(btl|pml|mtl|osc|coll|op|smsc|topo|mpi|mpool|rcache|threads)(?!\w*(_uri|dir|path|file))[A-Z0-9_]*",
    re.IGNORECASE,
)


def allowed(variables: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the variables that may be recorded, sorted by name."""
    return {name: value for name, value in sorted(variables) if ALLOWED.fullmatch(name)}


def unsettable(name: str, value: str, fresh: bool = False) -> str | None:
    """Return the reason why ranks may not have a variable; None if they may. fresh: their process is yet to start."""
    return unknown(name, fresh) or unfit(value)


def unknown(name: str, fresh: bool = False) -> str | None:
    """Return the reason why ranks may not have a variable of this name, and similar names; see `unsettable`."""
    if name in TUNING or (fresh and name in AT_START):
        return None
    if name in AT_START:
        return "it is read when a process starts: set it for a side of ab, or in your own environment"
    near = difflib.get_close_matches(name, sorted({*TUNING} | (AT_START if fresh else set())), n=3, cutoff=LIKENESS)
    proposal = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"it is none of the variables that may be set for ranks (list variables){proposal}"


def unfit(value: str) -> str | None:
    """Return the reason why no variable may have this value; None if one may."""
    return None if VALUE.fullmatch(value) else "a value has only letters, digits and _ . , : ^ = + - (and ;name:)"


def leaves_loopback(name: str, value: str) -> bool:
    """Return whether a variable may open ports of one machine to other machines."""
    return name in NETWORKS and not set(value.split(",")) <= NETWORKS[name]
