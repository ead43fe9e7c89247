from collections.abc import AsyncIterator, Awaitable

import grpc.aio

from node_plugin.proto import dra_v1beta1_pb2

class DRAPluginStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    NodePrepareResources: grpc.aio.UnaryUnaryMultiCallable[dra_v1beta1_pb2.NodePrepareResourcesRequest, dra_v1beta1_pb2.NodePrepareResourcesResponse]
    NodeUnprepareResources: grpc.aio.UnaryUnaryMultiCallable[dra_v1beta1_pb2.NodeUnprepareResourcesRequest, dra_v1beta1_pb2.NodeUnprepareResourcesResponse]

class DRAPluginServicer:
    def NodePrepareResources(
        self,
        request: dra_v1beta1_pb2.NodePrepareResourcesRequest,
        context: grpc.aio.ServicerContext[dra_v1beta1_pb2.NodePrepareResourcesRequest, dra_v1beta1_pb2.NodePrepareResourcesResponse],
        /,
    ) -> Awaitable[dra_v1beta1_pb2.NodePrepareResourcesResponse]: ...
    def NodeUnprepareResources(
        self,
        request: dra_v1beta1_pb2.NodeUnprepareResourcesRequest,
        context: grpc.aio.ServicerContext[dra_v1beta1_pb2.NodeUnprepareResourcesRequest, dra_v1beta1_pb2.NodeUnprepareResourcesResponse],
        /,
    ) -> Awaitable[dra_v1beta1_pb2.NodeUnprepareResourcesResponse]: ...

def add_DRAPluginServicer_to_server(
    servicer: DRAPluginServicer, server: grpc.aio.Server
) -> None: ...
