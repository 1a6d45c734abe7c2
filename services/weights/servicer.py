"""WeightsService over gRPC."""

import grpc
from furlong.weights.v1 import weights_pb2, weights_pb2_grpc

from services.common.conversions import version_to_proto
from services.common.server import ServedService
from services.weights.conversions import (
    engine_record_to_proto,
    layout_from_proto,
    outcome_to_proto,
    required_version,
    source_buffer_from_proto,
    source_rank_offer_from_proto,
    source_rank_plan_to_proto,
    version_record_to_proto,
)
from services.weights.coordinator import Coordinator


class WeightsServicer(weights_pb2_grpc.WeightsServiceServicer):
    """Maps calls to the coordinator."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def RegisterEngine(
        self, request: weights_pb2.RegisterEngineRequest, context: grpc.ServicerContext
    ) -> weights_pb2.RegisterEngineResponse:
        """Adds an engine and brings it the committed version."""
        layouts = [layout_from_proto(rank) for rank in request.ranks]
        version = self._coordinator.register_engine(request.engine_id, request.receiver_address, layouts)
        return weights_pb2.RegisterEngineResponse(version=version_to_proto(version) if version else None)

    def PlanTransfer(
        self, request: weights_pb2.PlanTransferRequest, context: grpc.ServicerContext
    ) -> weights_pb2.PlanTransferResponse:
        """The plan for the engines that take part."""
        plan = self._coordinator.plan_transfer([source_rank_offer_from_proto(rank) for rank in request.ranks])
        ranks = [source_rank_plan_to_proto(rank) for rank in plan.ranks]
        return weights_pb2.PlanTransferResponse(plan_id=plan.plan_id, ranks=ranks)

    def PublishVersion(
        self, request: weights_pb2.PublishVersionRequest, context: grpc.ServicerContext
    ) -> weights_pb2.PublishVersionResponse:
        """The outcome of the two-phase commit."""
        outcome = self._coordinator.publish_version(
            request_id=request.request_id,
            version=required_version(request.version),
            plan_id=request.plan_id,
            buffers=[source_buffer_from_proto(buffer) for buffer in request.buffers],
        )
        return outcome_to_proto(outcome)

    def ListVersions(
        self, request: weights_pb2.ListVersionsRequest, context: grpc.ServicerContext
    ) -> weights_pb2.ListVersionsResponse:
        """The versions, oldest first."""
        records = self._coordinator.versions(request.run_id)
        return weights_pb2.ListVersionsResponse(versions=[version_record_to_proto(record) for record in records])

    def ListEngines(
        self, request: weights_pb2.ListEnginesRequest, context: grpc.ServicerContext
    ) -> weights_pb2.ListEnginesResponse:
        """The engines, in order of id."""
        records = self._coordinator.engines()
        return weights_pb2.ListEnginesResponse(engines=[engine_record_to_proto(record) for record in records])


def weights_service(coordinator: Coordinator) -> ServedService:
    """The service, to be added to a server."""
    servicer = WeightsServicer(coordinator)
    return ServedService(
        full_name="furlong.weights.v1.WeightsService",
        add_to=lambda server: weights_pb2_grpc.add_WeightsServiceServicer_to_server(servicer, server),
    )
